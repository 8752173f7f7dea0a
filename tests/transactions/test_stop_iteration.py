"""A StopIteration of the user's code reaches its caller as itself, although flows are generators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.errors import StoredFailure

pytestmark = pytest.mark.store("sqlite")


def first_of(items: list[str]) -> str:
    return next(iter(items))


def call_once(safe: RetrySafe, path: Path) -> None:
    @safe.once("{key}", policy=Policy(failures="store"))
    def pay(key: str) -> str:
        return first_of([])

    pay("k")


def call_transactional(safe: RetrySafe, path: Path) -> None:
    @safe.transactional("{key}", tx=path, policy=Policy(failures="store"))
    def pay(tx: Any, key: str) -> str:
        return first_of([])

    pay("k")


def call_block(safe: RetrySafe, path: Path) -> None:
    with safe.transaction(path, key="k", scope="s", policy=Policy(failures="store")) as tx:
        tx.answer = Answer(200, first_of([]))


WAYS = [call_once, call_transactional, call_block]


@pytest.mark.parametrize("way", WAYS)
def test_it_reaches_its_caller(tmp_path: Path, way: Callable[[RetrySafe, Path], None]) -> None:
    path = tmp_path / "shop.db"
    with RetrySafe(f"sqlite:///{path}") as safe:
        safe.migrate()
        with pytest.raises(StopIteration):
            way(safe, path)


@pytest.mark.parametrize("way", [call_once, call_transactional])
def test_it_is_stored_by_its_name(tmp_path: Path, way: Callable[[RetrySafe, Path], None]) -> None:
    path = tmp_path / "shop.db"
    with RetrySafe(f"sqlite:///{path}") as safe:
        safe.migrate()
        with pytest.raises(StopIteration):
            way(safe, path)
        with pytest.raises(StoredFailure, match="failed with StopIteration"):
            way(safe, path)
