"""`python -m tests.simulation.ablations`: the table (table.py). Processes that it starts cannot import this module, so
nothing else is in it."""

from __future__ import annotations

import sys

from tests.simulation.ablations.table import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
