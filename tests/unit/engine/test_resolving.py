"""`safe.resolve`: the person who decides, from Python."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from retrysafe import Answer, Key, Policy, RetrySafe
from retrysafe.core.fingerprint import fingerprint_text
from retrysafe.core.ops import Claim, Complete, Lookup, Suspect
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.engine.guard import Task
from retrysafe.errors import NotUncertain, UsageError

KEY = Key("k", "t1")


def begun(safe: RetrySafe, lease: int = 0, key: Key = KEY) -> Record:
    """Somebody began it; with a lease of nothing it has lapsed already."""
    claim: Claim = Task(key, safe.namespace, "POST /x", fingerprint_text("t1", "x"), Policy()).build_claim()
    reply = safe.execute(replace(claim, lease=lease))
    assert reply.record is not None
    return reply.record


@pytest.fixture
def safe() -> RetrySafe:
    return RetrySafe("memory://")


@pytest.mark.parametrize("swept", [True, False])
def test_it_happened(safe: RetrySafe, swept: bool) -> None:
    record = begun(safe)
    if swept:
        assert safe.execute(Suspect(record.id, record.fence, "nobody knows", True))
    after = safe.resolve(KEY, happened=True, answer=Answer(201, {"id": 7}), because="the bank's console")
    assert (after.state, after.answer, after.note) == (State.COMPLETED, Answer(201, {"id": 7}), "the bank's console")


def test_it_happened_and_nobody_has_the_answer(safe: RetrySafe) -> None:
    begun(safe)
    after = safe.resolve(KEY, happened=True)
    assert after.answer is not None
    assert (after.state, after.answer.gone) == (State.COMPLETED, "forgotten")


def test_it_did_not_happen(safe: RetrySafe) -> None:
    record = begun(safe)
    after = safe.resolve(record.id.hex(), happened=False, because="not in their list")
    assert (after.state, after.note) == (State.RELEASED, "not in their list")


def test_from_a_loop(safe: RetrySafe) -> None:
    begun(safe)
    after = asyncio.run(safe.aresolve(KEY, happened=False, because="not in their list"))
    assert after.state is State.RELEASED


def test_a_living_owner_is_not_overruled(safe: RetrySafe) -> None:
    record = begun(safe, lease=60_000_000)
    with pytest.raises(NotUncertain, match="is claimed in attempt 1"):
        safe.resolve(KEY, happened=True)
    assert safe.execute(Lookup(record.id)).record == record


def test_the_second_is_told(safe: RetrySafe) -> None:
    record = begun(safe)
    safe.resolve(KEY, happened=False, because="not in their list")
    with pytest.raises(NotUncertain, match=r"is released in attempt 1 \(not in their list\)"):
        safe.resolve(KEY, happened=True)
    assert safe.execute(Complete(record.id, record.fence, Answer(200))) is False


def test_only_the_attempt_that_was_looked_at(safe: RetrySafe) -> None:
    begun(safe)
    with pytest.raises(NotUncertain):
        safe.resolve(KEY, happened=True, attempt=2)
    assert safe.resolve(KEY, happened=True, attempt=1).state is State.COMPLETED


def test_another_application_is_left_alone(safe: RetrySafe) -> None:
    record = begun(safe)
    neighbour = RetrySafe(safe.store, namespace="neighbour")
    with pytest.raises(UsageError, match="in namespace 'neighbour'"):
        neighbour.resolve(record.id, happened=True)


def test_what_cannot_be_said(safe: RetrySafe) -> None:
    begun(safe)
    with pytest.raises(UsageError, match="because="):
        safe.resolve(KEY, happened=False)
    with pytest.raises(UsageError, match="has no answer"):
        safe.resolve(KEY, happened=False, answer=Answer(200), because="x")
    with pytest.raises(UsageError, match="64 hex digits"):
        safe.resolve("k", happened=True)
    with pytest.raises(UsageError, match="there is no record"):
        safe.resolve(Key("other", "t1"), happened=True)
