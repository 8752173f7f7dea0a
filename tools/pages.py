"""A generated page: written anew, or with `--check` only compared."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write(page: Path, text: str) -> None:
    name = page.relative_to(ROOT)
    if "--check" in sys.argv:
        if not page.exists() or page.read_text() != text:
            sys.exit(f"{name} is stale: run `make docs`")
        return
    page.write_text(text)
    print(f"wrote {name}")
