"""A worker's reaper beside somebody else's claims: `python -m benchmarks.apps.reaper URL BATCH PAUSE`.

Each line on its standard input is a number of seconds to reap for; it answers with the number of records that went. A
process of its own, as in production: in the claimants' process it would be their interpreter that is measured.
"""

from __future__ import annotations

import sys
import time

from retrysafe.engine.safe import RetrySafe
from retrysafe.worker.reaper import Reaper


def main() -> None:
    url, batch, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    reaper = Reaper(RetrySafe(url), batch)
    for line in sys.stdin:
        deadline = time.perf_counter() + float(line)

        def over(deadline: float = deadline) -> bool:
            return time.perf_counter() >= deadline

        print(reaper.run_once(over, lambda seconds: time.sleep(pause)), flush=True)


if __name__ == "__main__":
    main()
