"""axe-core: finds accessibility problems in a page of a real browser."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
SCRIPT = FOLDER / "axe.min.js"
