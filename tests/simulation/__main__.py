"""`python -m tests.simulation`: our own campaigns (campaigns.py). Processes that a campaign starts cannot import this
module, so nothing else is in it."""

from __future__ import annotations

import sys

from tests.simulation.campaigns import main

if __name__ == "__main__":
    sys.exit(main())
