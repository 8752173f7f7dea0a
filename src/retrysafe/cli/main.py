"""`retrysafe`: the command line program. Each command group is a module with an `add_parser` function, listed here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from retrysafe import __version__
from retrysafe.cli import demo, doctor, keys, migrate, operations, outbox, reconcile, worker
from retrysafe.errors import RetrySafeError

COMMAND_MODULES = (demo, worker, migrate, doctor, keys, operations, outbox, reconcile)

EXIT_REFUSED = 1
"""The command failed. (argparse exits with 2 if the arguments are wrong.)"""


def build_parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="retrysafe", description="Makes every write safe to retry.")
    root.add_argument("--version", action="version", version=f"retrysafe {__version__}")
    commands = root.add_subparsers(dest="command", metavar="COMMAND")
    for group in COMMAND_MODULES:
        group.add_parser(commands)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        return int(args.run(args) or 0)
    except RetrySafeError as error:
        print(f"retrysafe: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
