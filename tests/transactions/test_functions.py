"""`@safe.transactional`, and what the block lets its user do."""

from __future__ import annotations

import inspect
import sqlite3
from dataclasses import dataclass
from typing import Any

import pytest

from retrysafe import Answer, KeyRing, Policy, RetrySafe
from retrysafe.core.keys import Key
from retrysafe.core.ops import Lookup
from retrysafe.errors import (
    FingerprintMismatch,
    ResultNotStorable,
    ScopeRequired,
    StoredFailure,
    TemplateError,
    UsageError,
)
from tests.transactions.rigs import SCOPE, World

pytestmark = pytest.mark.store("sqlite")


@dataclass(frozen=True)
class Money:
    cents: int


def write(tx: Any, value: object) -> None:
    tx.execute("INSERT INTO effects (value) VALUES (?)", [str(value)])


def test_a_function_commits_with_its_result(sqlite: World) -> None:
    @sqlite.safe.transactional("pay:{order}", tx=sqlite.path)
    def pay(tx: Any, order: int, amount: Money, note: str = "") -> tuple[int, None]:
        write(tx, order)
        return order, None

    assert pay(7, Money(5)) == (7, None)
    assert pay(order=7, amount=Money(5), note="") == (7, None), "positional and keyword are one call"
    assert sqlite.effects() == ["7"]
    with pytest.raises(FingerprintMismatch):
        pay(7, Money(6))
    assert list(inspect.signature(pay).parameters) == ["order", "amount", "note"], "callers do not see tx"


def test_without_tx_that_of_retrysafe_is_used(sqlite: World) -> None:
    """It is read at the call: an application may set it when its event loop runs."""

    @sqlite.safe.transactional("pay:{order}")
    def pay(tx: Any, order: int) -> int:
        write(tx, order)
        return order

    sqlite.safe.tx = None
    with pytest.raises(UsageError, match=r"pay.* has no transaction to run in: pass tx=.* or to RetrySafe"):
        pay(7)
    assert sqlite.effects() == []
    sqlite.safe.tx = sqlite.path
    assert (pay(7), pay(7)) == (7, 7)
    assert sqlite.effects() == ["7"]


async def test_without_tx_that_of_retrysafe_is_used_by_async_functions(sqlite: World) -> None:
    @sqlite.safe.transactional("pay:{order}")
    async def pay(tx: Any, order: int) -> int:
        await tx.execute("INSERT INTO effects (value) VALUES (?)", [str(order)])
        return order

    sqlite.safe.tx = None
    with pytest.raises(UsageError, match="has no transaction to run in"):
        await pay(7)
    sqlite.safe.tx = sqlite.path
    assert (await pay(7), await pay(7)) == (7, 7)
    assert sqlite.effects() == ["7"]


def test_tx_may_stand_anywhere(sqlite: World) -> None:
    @sqlite.safe.transactional("a:{n}", tx=sqlite.path)
    def last(n: int, *rest: int, tx: Any, **more: int) -> list[Any]:
        write(tx, n)
        return [n, list(rest), more]

    assert last(1, 2, 3, x=4) == [1, [2, 3], {"x": 4}]
    assert last(1, 2, 3, x=4) == [1, [2, 3], {"x": 4}]

    @sqlite.safe.transactional("b:{n}", tx=sqlite.path)
    def between(n: int, tx: Any, m: int) -> int:
        write(tx, n + m)
        return n + m

    assert between(10, 20) == 30
    assert sqlite.effects() == ["1", "30"]


async def test_an_async_function(sqlite: World) -> None:
    @sqlite.safe.transactional("pay:{order}", tx=sqlite.path)
    async def pay(order: int, tx: Any) -> int:
        await tx.execute("INSERT INTO effects (value) VALUES (?)", [str(order)])
        return order

    assert [await pay(7), await pay(7)] == [7, 7]
    assert sqlite.effects() == ["7"]
    await sqlite.safe.aclose()


def test_a_result_that_cannot_be_stored_rolls_back(sqlite: World) -> None:
    @sqlite.safe.transactional("k:{n}", tx=sqlite.path)
    def odd(n: int, tx: Any) -> object:
        write(tx, n)
        return object() if not sqlite_ok else "plain"

    sqlite_ok = False
    with pytest.raises(ResultNotStorable, match="rolled back, so nothing happened"):
        odd(1)
    assert sqlite.effects() == []
    sqlite_ok = True
    assert odd(1) == "plain"


def test_a_stored_failure_comes_back_as_one(sqlite: World) -> None:
    @sqlite.safe.transactional("k:{n}", tx=sqlite.path, policy=Policy(failures="store"))
    def fail(n: int, tx: Any) -> None:
        write(tx, n)
        raise ValueError("no such order")

    with pytest.raises(ValueError, match="no such order"):
        fail(1)
    with pytest.raises(StoredFailure, match="no such order"):
        fail(1)
    assert sqlite.effects() == []


def test_decorating_without_tx_or_with_tx_in_the_key_is_refused(sqlite: World) -> None:
    with pytest.raises(UsageError, match="'tx'"):

        @sqlite.safe.transactional("k:{n}", tx=sqlite.path)
        def no_handle(n: int) -> None: ...

    with pytest.raises((UsageError, TemplateError)):

        @sqlite.safe.transactional("k:{tx}", tx=sqlite.path)
        def in_key(tx: Any) -> None: ...


def test_what_is_stored_is_sealed(sqlite: World) -> None:
    safe = RetrySafe(sqlite.url, keyring=KeyRing({"k": b"0" * 32}))
    secret = "planted-secret"
    for expected in (False, True):
        with safe.transaction(sqlite.path, key="k", scope=SCOPE) as tx:
            assert tx.replayed is expected
            if not tx.replayed:
                tx.answer = Answer(201, {"card": secret})
        assert tx.answer.json() == {"card": secret}
    connection = sqlite3.connect(sqlite.path)
    dumped = "\n".join(connection.iterdump())
    (body,) = connection.execute("SELECT body FROM retrysafe_keys").fetchone()
    connection.close()
    assert secret not in dumped
    assert secret.encode() not in body
    safe.close()


def test_a_block_tells_what_it_cannot_do(sqlite: World) -> None:
    safe = sqlite.safe
    with pytest.raises(ScopeRequired):
        safe.transaction(sqlite.path, key="k")
    with pytest.raises(UsageError, match="is not the scope of"):
        safe.transaction(sqlite.path, key=Key("k", "a"), scope="b")
    with safe.transaction(sqlite.path, key=Key("k", SCOPE)) as tx:
        with pytest.raises(UsageError, match="not set yet"):
            _ = tx.answer
        with pytest.raises(UsageError, match="give an Answer"):
            tx.answer = {"id": 7}  # type: ignore[assignment]
        tx.answer = Answer(204)
    with pytest.raises(UsageError, match="only inside"):
        _ = tx.handle
    with safe.transaction(sqlite.path, key="k", scope=SCOPE) as tx:
        assert tx.replayed
        with pytest.raises(UsageError, match=r"if tx\.replayed: return tx\.answer"):
            _ = tx.handle
        with pytest.raises(UsageError, match="a replay cannot change it"):
            tx.answer = Answer(201)
    with pytest.raises(UsageError, match="used once"), tx:
        pass
    assert safe.execute(Lookup(Key("k", SCOPE).id("default"))).record == tx.record


def test_events_are_counted(sqlite: World) -> None:
    for _ in range(2):
        with sqlite.safe.transaction(sqlite.path, key="k", scope=SCOPE) as tx:
            if not tx.replayed:
                tx.answer = Answer(204)
    with pytest.raises(FingerprintMismatch), sqlite.safe.transaction(sqlite.path, key="k", scope=SCOPE, request=2):
        pass
    assert sqlite.safe.counters == {"new": 1, "completed": 1, "replayed": 1, "mismatched": 1}
