"""A store that cannot be reached: new claims are refused at once, and no other operation is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Claim, Complete, Lookup
from retrysafe.engine import aperform, probe, resending
from retrysafe.engine.circuit import FIRST_PROBE_SECONDS, MAX_PROBE_SECONDS, CircuitBreaker, next_pause
from retrysafe.errors import (
    OutcomeUnrecorded,
    SchemaMissing,
    StoreError,
    StoreUnavailable,
    StoreUnclear,
    StoreUnreachable,
)
from retrysafe.stores.tiered import MemoryCache, Tiered
from retrysafe.testing.builders import claim, lookup
from tests.unit.engine.gates import AsyncWatched, Watched
from tests.unit.engine.hands import Work, task
from tests.waiting import until

AWAY = StoreUnreachable("nobody listens on port 1")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resending, "RESEND_DELAYS_SECONDS", (0.0, 0.0, 0.0, 0.0))
    for module in (probe, aperform):
        monkeypatch.setattr(module, "FIRST_PROBE_SECONDS", 0.001)


# The decision ------------------------------------------------------------------------------------


def test_closed_until_a_connection_fails() -> None:
    circuit, op = CircuitBreaker(), claim("k")
    assert circuit.refusal_error(op, 1.0) is None
    circuit.record_failure(op, AWAY, 10.0)
    circuit.record_failure(op, StoreUnreachable("and again"), 11.0)
    refusal = circuit.refusal_error(op, 12.5)
    assert refusal is not None
    assert "for 2.5 s" in str(refusal)
    assert "nobody listens on port 1" in str(refusal)
    assert circuit.refusal_error(lookup("k"), 12.5) is None, "only new claims"
    circuit.record_answer(op)
    assert circuit.refusal_error(op, 13.0) is None


@pytest.mark.parametrize("contended", [StoreUnavailable("lost 5 races"), StoreUnclear("silence")])
def test_contention_says_nothing(contended: StoreError) -> None:
    circuit, op = CircuitBreaker(), claim("k")
    circuit.record_failure(op, contended, 1.0)
    assert not circuit.away
    circuit.record_failure(op, AWAY, 2.0)
    circuit.record_failure(op, contended, 3.0)
    assert circuit.away[""].since == 2.0


def test_an_answer_of_any_kind_closes_it() -> None:
    circuit, op = CircuitBreaker(), claim("k")
    circuit.record_failure(op, AWAY, 1.0)
    circuit.record_failure(op, SchemaMissing("no tables", "postgresql://h/d"), 2.0)
    assert not circuit.away


def test_nodes_are_told_apart() -> None:
    a, b = claim("a"), claim("b")
    circuit = CircuitBreaker(lambda record_id: "A" if record_id == a.id else "B")
    circuit.record_failure(
        b, StoreUnreachable("not there", node="A"), 1.0
    )  # one batch for both, and the first node was away
    assert circuit.refusal_error(a, 2.0) is not None
    assert circuit.refusal_error(b, 2.0) is None
    circuit.record_answer(b)
    assert circuit.refusal_error(a, 2.0) is not None
    circuit.record_failure(a, StoreUnreachable("none of them is"), 3.0)
    assert circuit.refusal_error(b, 4.0) is not None
    assert [node for node, _ in circuit.build_probes()] == ["A", ""]
    circuit.mark_back("A")
    circuit.mark_back("")
    assert circuit.refusal_error(a, 5.0) is circuit.refusal_error(b, 5.0) is None


def test_pauses_grow_to_a_limit() -> None:
    pauses = [FIRST_PROBE_SECONDS]
    while pauses[-1] < MAX_PROBE_SECONDS:
        pauses.append(next_pause(pauses[-1]))
    assert pauses == [0.25, 0.5, 1.0, 2.0]
    assert next_pause(MAX_PROBE_SECONDS) == MAX_PROBE_SECONDS


# Threads -----------------------------------------------------------------------------------------


class Away:
    """What the store is asked, while it is away or not."""

    def __init__(self) -> None:
        self.away = True
        self.asked: list[Any] = []

    def __call__(self, op: Any) -> None:
        self.asked.append(type(op))
        if self.away:
            raise StoreUnreachable("nobody listens")

    def claims(self) -> int:
        return self.asked.count(Claim)


def test_only_the_first_claim_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Away()
    safe = RetrySafe(Watched(away))
    for number in range(20):
        with pytest.raises(StoreUnreachable):
            safe.execute(claim(f"k{number}"))
    assert away.claims() == 1
    away.away = False
    until(lambda: not safe.performer()._circuit.away, 30, "the probe to find the store")
    assert Lookup in away.asked
    assert safe.execute(claim("after")).granted
    safe.close()


def test_others_go_through_and_let_claims_in_again() -> None:
    away = Away()
    safe = RetrySafe(Watched(away))
    with pytest.raises(StoreUnreachable):
        safe.execute(claim("a"))
    with pytest.raises(StoreUnreachable):
        safe.execute(lookup("a"))
    assert away.asked == [Claim, Lookup], "a lookup is sent, whatever is known"
    away.away = False
    assert safe.execute(lookup("a")).record is None
    assert safe.execute(claim("b")).granted
    assert away.claims() == 2


def test_who_owns_a_key_goes_on_to_settle_it() -> None:
    """The store goes away while the work runs: its outcome is sent again and again, although claims are refused."""
    away = Away()
    away.away = False
    safe, work = RetrySafe(Watched(away)), Work()
    call = work.call

    def leaves(record: Any) -> Any:
        away.away = True
        return call(record)

    work.call = leaves  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnrecorded):
        safe.guard(task(lease=0.05), work)
    assert away.asked.count(Complete) > 1


def test_a_cache_goes_on_answering() -> None:
    """What is remembered needs no store: a claim is asked of it, whatever is known of the server."""
    away = Away()
    away.away = False
    safe, work = RetrySafe(Tiered(Watched(away), MemoryCache())), Work()
    for _ in range(2):  # it is the replay that is remembered
        safe.guard(task(), work)
    away.away = True
    with pytest.raises(StoreUnreachable):
        safe.execute(claim("another", now=None))
    assert safe.performer()._circuit.away
    assert safe.guard(task(), work).replayed


def test_nobody_probes_for_a_closed_one() -> None:
    away = Away()
    safe = RetrySafe(Watched(away))
    for key in ("a", "b"):
        with pytest.raises(StoreUnreachable):
            safe.execute(claim(key))
    thread = safe.performer()._probe._thread
    assert thread is not None
    safe.close()
    thread.join(30)
    assert not thread.is_alive()


# Event loops -------------------------------------------------------------------------------------


async def test_only_the_first_claim_waits_async() -> None:
    away = Away()
    safe = RetrySafe(async_store=AsyncWatched(Watched(away)))
    for number in range(20):
        with pytest.raises(StoreUnreachable):
            await safe.aexecute(claim(f"k{number}"))
    assert away.claims() == 1
    away.away = False
    found = safe.async_performer()._probe
    assert found is not None
    async with asyncio.timeout(30):
        await found
    assert (await safe.aexecute(claim("after"))).granted


async def test_nobody_probes_for_a_closed_one_async() -> None:
    away = Away()
    safe = RetrySafe(async_store=AsyncWatched(Watched(away)))
    for key in ("a", "b"):
        with pytest.raises(StoreUnreachable):
            await safe.aexecute(claim(key))
    found = safe.async_performer()._probe
    assert found is not None
    await safe.aclose()
    assert found.cancelled()
