"""`retrysafe`: the one program. Each command group is a file that adds its parsers here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from retrysafe import __version__
from retrysafe.cli import demo, doctor, keys, migrate, operations, outbox, reconcile, worker
from retrysafe.errors import RetrySafeError

COMMAND_MODULES = (demo, worker, migrate, doctor, keys, operations, outbox, reconcile)

EXIT_REFUSED = 1
"""The command was understood and could not be done. (argparse exits with 2 when it was not understood.)"""


def build_parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="retrysafe", description="Makes every write safe to retry.")
    root.add_argument("--version", action="version", version=f"retrysafe {__version__}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for group in COMMAND_MODULES:
        group.add(commands)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    given = build_parser().parse_args(arguments)
    try:
        return int(given.run(given) or 0)
    except RetrySafeError as error:
        print(f"retrysafe: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
