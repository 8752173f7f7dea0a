"""An application whose operations the command line lists: the store is named by the environment."""

from __future__ import annotations

import os

from retrysafe import Answer, RetrySafe

safe = RetrySafe(os.environ["RETRYSAFE_BENCH_URL"])
greet = safe.operation("greet")


@greet.body
def answer() -> Answer:
    return Answer(200)
