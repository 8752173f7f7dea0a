"""A guide names the extra that its code needs, and every extra it names exists."""

from __future__ import annotations

import ast
import re
import sys
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
PAGES = [page for part in ("howto", "tutorial", "explanation") for page in sorted((ROOT / "docs" / part).glob("*.md"))]
BLOCK = re.compile(r"(?<!^<!-- no-run -->\n)^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"pip install ([^\n`]+)")
LOCAL = {"retrysafe", "shop", "tasks"}
"""Modules that are ours, or that a page lets its reader write."""
INSTALLED_BY = {
    "psycopg": {"postgres"},
    "psycopg_pool": {"postgres"},
    "pymysql": {"mysql"},
    "pymongo": {"mongodb"},
    "boto3": {"dynamodb"},
    "botocore": {"dynamodb"},
    "aio_pika": {"rabbitmq"},
    "aiokafka": {"kafka"},
    "temporalio": {"temporal"},
    "opentelemetry": {"otel"},
    "prometheus_client": {"prometheus"},
    "pytest": {"testing"},
    "hypothesis": {"testing"},
    "rest_framework": {"djangorestframework"},
    "pydantic": {"fastapi"},
    "redis": {"rq", "arq"},
}
"""The extras or packages that bring a module whose name is another one."""


def extras_of(text: str) -> set[str]:
    return {extra for group in NAMED.findall(text) for extra in group.split(",")}


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_names_its_extras(guide: str) -> None:
    assert GUIDES[guide] <= extras_of((HOWTO / f"{guide}.md").read_text())


def test_every_extra_that_a_page_names_exists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {(page.name, extra) for page in pages for extra in extras_of(page.read_text())}
    assert {extra for _, extra in named} - EXTRAS == set()


def list_imports(text: str) -> set[str]:
    """The packages that the code of a page imports, without the standard library."""
    found: set[str] = set()
    for code in BLOCK.findall(text):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
    return {each.partition(".")[0] for each in found} - sys.stdlib_module_names - LOCAL


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_a_page_says_how_to_install_what_its_code_imports(page: Path) -> None:
    text = page.read_text()
    installed = set(re.findall(r"[\w-]+", " ".join(INSTALL.findall(text)))) | extras_of(text)
    missing = {each for each in list_imports(text) if not installed & {each, *INSTALLED_BY.get(each, ())}}
    assert missing == set()
