"""A greedy report: it holds the write lock of a SQLite file again and again, each time for longer than the alert on a
slow store allows. `python -m tests.runbooks.holding FILE`"""

from __future__ import annotations

import sqlite3
import sys
import time

HELD_SECONDS = 0.8

if __name__ == "__main__":
    db = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
    print("holding", flush=True)
    while True:
        db.execute("BEGIN IMMEDIATE")
        time.sleep(HELD_SECONDS)
        db.execute("COMMIT")
        time.sleep(0.02)
