"""The documentation site as `make docs` builds it, for tests that read it and for a browser."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ZENSICAL = ROOT / ".tools" / "docs" / "bin" / "zensical"


def build_site(folder: Path) -> Path:
    """Build it in an empty folder; a warning is an error. Returns where its pages are."""
    shutil.copytree(ROOT / "docs", folder / "docs")
    settings = shutil.copy(ROOT / "mkdocs.yml", folder)
    build = subprocess.run(
        [str(ZENSICAL), "build", "--strict", "--clean", "-f", str(settings)],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert build.returncode == 0, build.stdout + build.stderr
    return folder / "build" / "site"
