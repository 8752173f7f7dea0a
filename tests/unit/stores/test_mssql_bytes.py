"""SQL Server and bytes: what the driver makes of them, and what `=` makes of their ends.

pymssql writes bytes that happen to be ASCII as a text, which no binary column takes. And T-SQL fills the shorter of two
values up before it compares them: 0x01 = 0x0100, and 'a' = 'a '.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pymssql
import pytest
from pymssql import _mssql
from sqlglot import exp

from retrysafe.core.ops import Op, Renew
from retrysafe.core.records import Fence
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.memory import MemoryStore
from retrysafe.stores.sql.dialect import Statement
from retrysafe.testing.builders import advance, claim, complete, forget, lookup, release, renew, suspect
from retrysafe_mssql.dialect import parse_url
from retrysafe_mssql.on_pymssql import PymssqlTx
from retrysafe_mssql.store import MssqlStore
from tests.unit.stores.test_mssql import STATEMENTS, URL, parsed

PLAIN = b"sixteen letters."
"""A token that is a text to the driver, if nobody tells it otherwise."""


class Wire:
    """A connection that notes what the driver would put on the wire, and answers with nothing."""

    autocommit_state = True
    description = None

    def __init__(self) -> None:
        self.sent: list[str] = []

    def cursor(self, **options: Any) -> Wire:
        return self

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *error: object) -> None: ...

    def execute(self, text: str, values: Any = None) -> None:
        self.sent.append(_mssql.substitute_params(text, values).decode() if values else text)

    def nextset(self) -> bool:
        return False

    def close(self) -> None: ...


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    made = Wire()
    monkeypatch.setattr(pymssql, "connect", lambda **options: made)
    return made


def operations() -> Iterator[Op[Any]]:
    asked = claim("k", token=PLAIN, now=0)
    held = MemoryStore().execute(asked)
    yield asked
    yield lookup("k", now=0)
    for make in (renew, advance, complete, release, suspect, forget):
        yield make(held, now=0)  # type: ignore[operator]  # all of them take these


@pytest.mark.parametrize("op", list(operations()), ids=lambda op: type(op).__name__)
def test_bytes_are_sent_as_bytes(wire: Wire, op: Op[Any]) -> None:
    store = MssqlStore(parse_url(URL))
    with suppress(IndexError, StoreUnavailable):  # nothing comes back, and some cannot go on without
        store.execute(op)
    said = "\n".join(wire.sent)
    assert f"0x{op.id.hex()}" in said  # type: ignore[attr-defined]  # each of them has one
    if not isinstance(op, type(lookup("k"))):
        assert f"0x{PLAIN.hex()}" in said
    assert PLAIN.decode() not in said


def test_on_a_users_connection_too(wire: Wire) -> None:
    tx = PymssqlTx(wire)
    tx.send(Statement("SELECT %(a)s, %(b)s, %(c)s, %(d)s", {"a": PLAIN, "b": b"", "c": "text", "d": None}))
    assert wire.sent == [f"SELECT 0x{PLAIN.hex()}, 0x, N'text', NULL"]


# What = makes of it -------------------------------------------------------------------------------

PADDED = {"id", "token", "run", "step", "fingerprint", "namespace", "kind", "scope", "key"}
"""Columns of bytes and of texts that come from outside. States and such are words of ours."""


def compared(batch: str) -> Iterator[tuple[str, str]]:
    """Column and parameter of each comparison by `=` in a condition."""
    for statement in parsed(batch):
        for condition in statement.find_all(exp.Where, exp.Join):
            where = condition.this if isinstance(condition, exp.Where) else condition.args.get("on")
            for equal in where.find_all(exp.EQ) if where is not None else ():
                if isinstance(equal.this, exp.Column) and equal.find(exp.Parameter) is not None:
                    yield equal.this.name, equal.expression.sql(dialect="tsql").strip("@")


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_comparison_compares_the_lengths_too(name: str) -> None:
    batch = STATEMENTS[name]
    for column, value in compared(batch):
        if column in PADDED:
            lengths = rf"DATALENGTH\({column}\) = DATALENGTH\(%\({value}\)s\)"
            assert re.search(lengths, batch), f"{column} = :{value} is true for another length, too"


@pytest.mark.parametrize(
    ("name", "columns"),
    [("renew", {"id", "token"}), ("forget", {"id", "token"}), ("takeover-0", {"id", "token"}),
     ("insert_or_read-0", {"id"}), ("receipt_replace-0", {"id", "token"}), ("receipt_read-0", {"id"}),
     ("job_fail-0", {"id", "token"}), ("job_finish-0", {"token"})],
)  # fmt: skip
def test_these_are_among_them(name: str, columns: set[str]) -> None:
    """So that the test above cannot pass by finding nothing."""
    batch = STATEMENTS[name if name in STATEMENTS else f"{name}-0"]
    assert {column for column, _ in compared(batch)} >= columns


def test_what_is_written_is_not_compared() -> None:
    """`token = :token` is a comparison in a condition, and an assignment behind SET."""
    for name in ("takeover-0", "rebirth-0", "job_take-everything", "receipt_replace-0"):
        for update in (each for each in parsed(STATEMENTS[name]) if isinstance(each, exp.Update)):
            assert not any(each.find(exp.Anonymous, exp.Func) for each in update.expressions if "token" in each.sql())


def test_a_fence_of_another_length_is_another(wire: Wire) -> None:
    """What T-SQL is asked about a token with a zero byte behind it: are they as long as each other?"""
    held = MemoryStore().execute(claim("k", token=PLAIN, now=0))
    longer = Renew(renew(held).id, Fence(1, PLAIN + b"\0"), 1, 0)
    assert MssqlStore(parse_url(URL)).execute(longer) is False
    said = wire.sent[-1]
    assert f"token = 0x{PLAIN.hex()}00 AND DATALENGTH(token) = DATALENGTH(0x{PLAIN.hex()}00)" in said
