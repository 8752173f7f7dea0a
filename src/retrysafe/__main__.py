"""`python -m retrysafe`: the same program as `retrysafe`."""

import sys

from retrysafe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
