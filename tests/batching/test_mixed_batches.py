"""Batches in which everything occurs at once: new keys, replays, takeovers, resends, late owners. The store replies
as the memory store does, operation by operation, whether a fast statement decided or the plan of the operation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.core.records import Record
from retrysafe.core.states import OnLapse
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import claim, complete, lookup, release, renew, withdraw
from tests.opening import COLOURS, open_migrated, store_url

MATRIX = [
    pytest.param(store, colour, id=f"{store}-{colour}", marks=pytest.mark.store(store))
    for store in ("sqlite", "postgres", "mongodb")
    for colour in COLOURS
]
KEYS, ROUNDS, STEP = 24, 60, 20.0


class Traffic:
    """Draws batches, and remembers what each key was asked before: resends and late owners come from there."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._asked: dict[str, list[Op[Any]]] = {}
        self._owners: dict[str, list[Record]] = {}

    def next_batch(self, now: float) -> list[tuple[str, Op[Any]]]:
        keys = self._draw.sample(range(KEYS), self._draw.randint(1, KEYS))
        batch = [(f"k{number}", self._draw_op(f"k{number}", now)) for number in keys]
        for key, op in batch:
            self._asked.setdefault(key, []).append(op)
        return batch

    def note(self, batch: Sequence[tuple[str, Op[Any]]], replies: Sequence[Any]) -> None:
        for (key, op), reply in zip(batch, replies, strict=True):
            if isinstance(op, Claim) and reply.granted:
                self._owners.setdefault(key, []).append(reply.record)

    def _draw_op(self, key: str, now: float) -> Op[Any]:
        draw, owners = self._draw, self._owners.get(key, [])
        if key in self._asked and draw.random() < 0.2:
            return draw.choice(self._asked[key])  # a late copy, with the time of its first sending
        if not owners or draw.random() < 0.4:
            lease = draw.choice((5, 15, 600))
            on_lapse: OnLapse = draw.choice(("uncertain", "rerun", "resume"))
            retention = draw.choice((10.0, 7200.0))
            return claim(
                key, lease=lease, retention=retention, on_lapse=on_lapse, body=draw.choice((b"1", b"2")), now=now
            )
        owner = owners[-1] if draw.random() < 0.8 else draw.choice(owners)
        write: Any = draw.choice((complete, complete, complete, renew, release, withdraw))
        return write(owner, now=now)  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("store", "colour"), MATRIX)
def test_a_batch_replies_as_memory_does(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, colour: str, seed: int
) -> None:
    do, memory, traffic = open_migrated(store_url(request, tmp_path, store), colour), MemoryStore(), Traffic(seed)
    try:
        for number in range(ROUNDS):
            batch = traffic.next_batch(number * STEP * (1 + number // 20 * 100))
            ops = [op for _, op in batch]
            expected = [memory.execute(op) for op in ops]
            assert do.many(ops) == expected
            traffic.note(batch, expected)
        for number in range(KEYS):
            assert do(lookup(f"k{number}")) == memory.execute(lookup(f"k{number}"))
    finally:
        do.close()


WAYS = {"short": "SHORT_CLAIMS", "whole": "WHOLE_CLAIMS", "looked up": "LOOKED_UP_CLAIMS"}


@pytest.mark.store("postgres")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("colour", COLOURS)
def test_which_way_the_claims_go_changes_no_reply(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colour: str, way: str
) -> None:
    """On PostgreSQL what the last batch met decides how the next one sends its claims. It may be wrong each time."""
    from retrysafe.stores.postgres import batches

    chosen = getattr(batches, WAYS[way])
    monkeypatch.setattr(batches, "choose_claims", lambda replies, before: chosen)
    test_a_batch_replies_as_memory_does(request, tmp_path, "postgres", colour, seed=17)


@pytest.mark.parametrize(("store", "colour"), MATRIX)
def test_a_refused_claim_costs_the_others_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, colour: str
) -> None:
    do = open_migrated(store_url(request, tmp_path, store), colour)
    try:
        held = do(claim("held"))
        fresh = [claim(f"new-{number}") for number in range(5)]
        replies: list[ClaimReply] = do.many([*fresh[:2], claim("held"), *fresh[2:]])
        assert [reply.granted for reply in replies] == [True, True, False, True, True, True]
        late = do(claim("late", lease=0, on_lapse="rerun"))
        taken = do(claim("late", now=1))
        done = do.many([complete(held), complete(late), *(complete(reply) for reply in replies if reply.granted)])
        assert done == [True, False, True, True, True, True, True]
        assert do(lookup("late")).record == taken.record
    finally:
        do.close()
