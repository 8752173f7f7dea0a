"""The DBOS recipe as a program that can be made to die right after the ledger's commit.

python -m tests.recipes.run_dbos STORE PROVIDER never|enter LEASE PORT
"""

from __future__ import annotations

import os
import signal
import sys

from examples.recipes import durable_dbos

from retrysafe.engine.events import RecordEvent


def main(store: str, provider: str, dies: str, lease: str, port: str) -> None:
    def on_event(event: RecordEvent) -> None:
        if event.name == "completed" and event.target.endswith(f".{dies}"):
            os.kill(os.getpid(), signal.SIGKILL)

    durable_dbos.serve(store, provider, int(port), float(lease), on_event=on_event)


if __name__ == "__main__":
    main(*sys.argv[1:6])
