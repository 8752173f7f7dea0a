"""`python -m retrysafe`: the same program as `retrysafe`."""

from __future__ import annotations

import sys

from retrysafe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
