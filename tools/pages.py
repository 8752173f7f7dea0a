"""Write a generated page, or with `--check` only compare it. A file of its own, because every page tool imports it."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_page(page: Path, text: str) -> None:
    """Write the page. With `--check` on the command line: exit with an error if the page has another text."""
    name = page.relative_to(ROOT)
    if "--check" in sys.argv:
        if not page.exists() or page.read_text() != text:
            sys.exit(f"{name} is stale: run `make pages`")
        return
    page.write_text(text)
    print(f"wrote {name}")
