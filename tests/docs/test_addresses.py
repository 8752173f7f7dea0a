"""Every address of the documentation that we print or ship begins with that of the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = "https://retrysafe.readthedocs.io/"
SHIPPED = (
    "monitoring/alerts.yml",
    "monitoring/dashboard.json",
    "mkdocs.yml",
    "pyproject.toml",
    "src/retrysafe/engine/problem_documents.py",
)


@pytest.mark.parametrize("name", SHIPPED)
def test_links_lead_to_pages_of_the_site(name: str) -> None:
    found = re.findall(rf"{SITE}([\w/-]*)", (ROOT / name).read_text())
    assert found
    for path in found:
        page = ROOT / "docs" / path
        assert page.is_dir() or page.with_suffix(".md").is_file(), f"{SITE}{path}: there is no such page"
