"""Whoever writes a store takes the whole contract suite: the page and the package name every module of it."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from retrysafe import testing
from retrysafe.testing import contract

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "write-a-store.md"
MODULES = [each.name for each in pkgutil.iter_modules(contract.__path__)]


def test_the_page_names_every_module_of_the_contract() -> None:
    told = PAGE.read_text("utf-8")
    assert MODULES
    assert [name for name in MODULES if f"contract.{name}" not in told] == []


def test_the_package_names_every_topic_of_the_contract() -> None:
    told = (testing.__doc__ or "").split("(claim")[1].split(")")[0]
    assert [name for name in MODULES if name != "claim" and name not in told] == []
