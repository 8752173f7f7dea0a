"""A guide names the extra that its code needs, and every extra it names exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs" / "howto"
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
NAMED = re.compile(r"retrysafe\[([\w,-]+)\]")
GUIDES = {
    **{name: {name} for name in ("fastapi", "starlette", "flask", "django", "litestar", "quart")},
    **{name: {name} for name in ("mysql", "mongodb", "dynamodb")},
    **{name: {name} for name in ("duckdb", "redis", "postgres", "encryption", "mcp", "testing")},
    "client": {"httpx", "requests", "stripe"},
    **{name: {name} for name in ("celery", "dramatiq", "rq", "arq", "taskiq", "bullmq", "huey", "procrastinate")},
    **{name: {name} for name in ("rabbitmq", "nats", "kafka", "faststream")},
    "redis-streams": {"redis"},
    "consumers": {"rabbitmq", "nats", "redis", "kafka", "faststream"},
    "durable-runtimes": {"dbos", "temporal"},
    "jobs": {"celery"},
    "webhooks": {"webhooks"},
    "console": {"console"},
}


def extras_of(text: str) -> set[str]:
    return {extra for group in NAMED.findall(text) for extra in group.split(",")}


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_names_its_extras(guide: str) -> None:
    assert GUIDES[guide] <= extras_of((HOWTO / f"{guide}.md").read_text())


def test_every_extra_that_a_page_names_exists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {(page.name, extra) for page in pages for extra in extras_of(page.read_text())}
    assert {extra for _, extra in named} - EXTRAS == set()
