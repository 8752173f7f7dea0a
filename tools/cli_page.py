"""Write docs/reference/cli.md from the commands' own --help. `--check` fails if the page is stale."""

from __future__ import annotations

import argparse
import os

from tools import pages

from retrysafe.cli.main import build_parser

PAGE = pages.ROOT / "docs" / "reference" / "cli.md"


def commands(of: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A parser and all below it, in their order."""
    found = [of]
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                found.extend(commands(below))
    return found


def page() -> str:
    os.environ["COLUMNS"] = "100"
    parts = ["# Commands\n\nGenerated from `--help` by `make docs`.\n"]
    parts.extend(f"## {each.prog}\n\n```\n{each.format_help()}```\n" for each in commands(build_parser()))
    return "\n".join(parts)


if __name__ == "__main__":
    pages.write(PAGE, page())
