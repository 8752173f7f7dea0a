"""A rival comes between the two statements of a claim: after the look that said "may be taken", before the taking.

Everything that made the record takeable is asked again by the statement that takes it. Each condition has its rival
here, and a store whose statement forgets one grants the key twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.ops import Claim, ClaimReply
from retrysafe.core.states import State
from retrysafe.stores.sql.plans import SqlPlans
from retrysafe.testing import Do
from retrysafe.testing.builders import claim, complete, record_of, release, renew
from tests.opening import COLOURS, open_do, open_migrated, store_url

SQL_STORES = ("sqlite", "postgres", "mysql", "mariadb", "duckdb")

each_store = pytest.mark.parametrize(
    "store", [pytest.param(name, marks=pytest.mark.store(name)) for name in SQL_STORES]
)
each_colour = pytest.mark.parametrize("colour", COLOURS)

LATER = 10_000
"""Seconds, on the clock of these tests: every lease and retention of the beginning is over by then."""


class Between:
    """Two at one store: what the rival does comes between the statements of our claim."""

    def __init__(self, do: Do, rival: Do, monkeypatch: pytest.MonkeyPatch) -> None:
        self.do, self.rival = do, rival
        self._patch = monkeypatch

    def claim(self, mine: Claim, move: Callable[[], object]) -> ClaimReply:
        real, moved = SqlPlans._insert_or_read, []

        def looked(plans: SqlPlans, op: Claim, *rest: Any) -> Any:
            found = yield from real(plans, op, *rest)
            if op == mine and not moved:
                assert found is not None
                assert not found.granted
                moved.append(move())
            return found

        with self._patch.context() as patched:
            patched.setattr(SqlPlans, "_insert_or_read", looked)
            reply: ClaimReply = self.do(mine)
        assert moved, "the claim never looked"
        return reply


@pytest.fixture
def between(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, colour: str
) -> Iterator[Between]:
    url = store_url(request, tmp_path, store)
    with closing(open_migrated(url, colour)) as do, closing(open_do(url, "sync")) as rival:
        yield Between(do, rival, monkeypatch)


@each_store
@each_colour
@pytest.mark.parametrize("settle", [complete, release])
def test_a_rival_s_new_life_is_not_taken_for_the_old_one(between: Between, settle: Callable[..., Any]) -> None:
    """Expired when we looked; reborn and settled by a rival since. The same state, but it has not expired."""
    first = between.rival(claim("k", retention=1, now=0))
    assert between.rival(complete(first, b"old", now=0)) is True
    theirs = claim("k", now=LATER)

    def live() -> None:
        assert between.rival(settle(between.rival(theirs), now=LATER)) is True

    # Another request: a record that was only released is no reason to let it in.
    mine = claim("k", body=b"other", now=LATER)
    reply = between.claim(mine, live)
    assert reply.granted is False
    assert record_of(reply).fence == (1, theirs.token)
    assert record_of(reply).state is (State.COMPLETED if settle is complete else State.RELEASED)


@each_store
@each_colour
def test_a_rival_that_was_reborn_and_runs_is_not_taken(between: Between) -> None:
    first = between.rival(claim("k", retention=1, now=0))
    assert between.rival(complete(first, b"old", now=0)) is True
    theirs = claim("k", now=LATER)
    reply = between.claim(claim("k", now=LATER), lambda: between.rival(theirs))
    assert reply.granted is False
    assert record_of(reply).fence == (1, theirs.token)


@each_store
@each_colour
def test_an_owner_that_renewed_is_not_replaced(between: Between) -> None:
    held = between.rival(claim("k", lease=1, on_lapse="rerun", now=0))
    mine = claim("k", on_lapse="rerun", now=LATER)
    reply = between.claim(mine, lambda: between.rival(renew(held, lease=30, now=LATER)))
    assert reply.granted is False
    assert record_of(reply).fence == record_of(held).fence


@each_store
@each_colour
def test_an_owner_that_completed_is_replayed(between: Between) -> None:
    held = between.rival(claim("k", lease=1, on_lapse="rerun", now=0))
    mine = claim("k", on_lapse="rerun", now=LATER)
    reply = between.claim(mine, lambda: between.rival(complete(held, b"late", now=LATER)))
    assert (reply.granted, record_of(reply).state) == (False, State.COMPLETED)


@each_store
@each_colour
def test_a_rival_that_took_it_over_keeps_it(between: Between) -> None:
    first = between.rival(claim("k", now=0))
    assert between.rival(release(first, now=0)) is True
    theirs = claim("k", now=1)
    reply = between.claim(claim("k", now=1), lambda: between.rival(theirs))
    assert reply.granted is False
    assert record_of(reply).fence == (2, theirs.token)
