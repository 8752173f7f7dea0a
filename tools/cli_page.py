"""Write docs/reference/cli.md from the --help of the commands. `--check` fails if the page is stale.

A file of its own: `make pages` runs one tool per generated page.
"""

from __future__ import annotations

import argparse
import os

from tools import pages

from retrysafe.cli.main import build_parser

PAGE = pages.ROOT / "docs" / "reference" / "cli.md"


def list_parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A parser and all its subparsers, in order."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                found.extend(list_parsers(subparser))
    return found


def build_page() -> str:
    os.environ["COLUMNS"] = "100"
    parts = ["# Commands\n\nGenerated from `--help` by `make pages`.\n"]
    parts.extend(f"## {each.prog}\n\n```\n{each.format_help()}```\n" for each in list_parsers(build_parser()))
    return "\n".join(parts)


if __name__ == "__main__":
    pages.write_page(PAGE, build_page())
