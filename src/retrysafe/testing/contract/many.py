"""Batches: the same replies in the same order as if each operation were executed alone."""

from __future__ import annotations

from typing import Any

from retrysafe.core.ops import Op
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import (
    advance,
    claim,
    complete,
    forget,
    lookup,
    record_of,
    release,
    renew,
    resolve,
    suspect,
)
from retrysafe.testing.driver import Do


def test_an_empty_batch(do: Do) -> None:
    assert do.many([]) == []


def test_replies_come_in_order(do: Do) -> None:
    ops = [claim(f"k{number}", now=number) for number in range(50)]
    replies = do.many(ops)
    assert [record_of(reply).key for reply in replies] == [op.key for op in ops]
    assert [reply.now for reply in replies] == [op.now for op in ops]
    assert all(reply.granted for reply in replies)


def test_grants_and_refusals_side_by_side(do: Do) -> None:
    for number in range(0, 20, 2):
        do(claim(f"k{number}", now=0))
    replies = do.many([claim(f"k{number}", now=1) for number in range(20)])
    assert [reply.granted for reply in replies] == [number % 2 == 1 for number in range(20)]


def build_batch(do: Do) -> list[Op[Any]]:
    """One operation of every kind, each on its own key. About half of them are refused."""
    owner = {name: do(claim(name, token=name.encode().ljust(16), run=b"r" * 16, now=0)) for name in KEYS}
    for name in ("resolve", "late-resolve", "resolve-no"):
        assert do(suspect(owner[name], "?", now=1))
    for name in ("forget", "replay"):
        assert do(complete(owner[name], b"stored", now=1))
    assert do(release(owner["takeover"], now=1))
    stale = record_of(owner["late"])._replace(attempt=7)
    return [
        claim("fresh", token=b"f" * 16, run=b"s" * 16, now=5),
        claim("busy", token=b"b" * 16, now=5),
        claim("replay", token=b"c" * 16, now=5),
        claim("mismatch", body=b"other", token=b"d" * 16, now=5),
        claim("takeover", token=b"e" * 16, now=5),
        renew(owner["renew"], now=5),
        advance(owner["advance"], now=5),
        complete(owner["complete"], b"\x00\xff", now=5),
        complete(stale, b"zombie", now=5),
        release(owner["release"], now=5),
        suspect(owner["suspect"], now=5),
        suspect(owner["sweep"], lapsed_only=True, now=5),
        resolve(owner["resolve"], b"yes", now=5),
        resolve(owner["resolve-no"], None, now=5),
        resolve(record_of(owner["late-resolve"])._replace(token=b"z" * 16), b"no", now=5),
        forget(owner["forget"], now=5),
        lookup("absent", now=5),
        lookup("present", now=5),
    ]


KEYS = (
    "busy",
    "replay",
    "mismatch",
    "takeover",
    "renew",
    "advance",
    "complete",
    "late",
    "release",
    "suspect",
    "sweep",
    "resolve",
    "resolve-no",
    "late-resolve",
    "forget",
    "present",
)


def test_a_batch_gives_the_replies_of_its_operations(do: Do) -> None:
    """Every kind of operation in one batch, compared with the memory store that executes them one by one."""
    reference = Do.sync(MemoryStore())
    expected = [reference(op) for op in build_batch(reference)]
    assert do.many(build_batch(do)) == expected
    for key in (*KEYS, "fresh"):
        assert do.record(key) == reference.record(key), key


def test_a_batch_sent_again_is_recognised(do: Do) -> None:
    """I11: after an unclear failure the whole batch is sent again, and the replies are the same."""
    ops = build_batch(do)
    first = do.many(ops)
    before = {key: do.record(key) for key in (*KEYS, "fresh")}
    again = do.many(ops)
    changed = len(ops) - 1  # the last one is a lookup of a key that the batch does not write
    assert again[:changed] == first[:changed]
    assert {key: do.record(key) for key in before} == before


def test_a_batch_is_fenced_as_anything_else(do: Do) -> None:
    """I4: in one batch, a former owner is refused and the current owners are not."""
    ops = [claim(f"k{number}", lease=10, on_lapse="rerun", now=0) for number in range(10)]
    owner = do.many(ops)
    assert do(claim("k3", lease=100, on_lapse="rerun", now=11)).granted
    replies = do.many([complete(reply, b"x", now=12) for reply in owner])
    assert replies == [number != 3 for number in range(10)]


def test_a_large_batch(do: Do) -> None:
    ops = [claim(f"k{number}", input=bytes([number % 256]) * 100, now=0) for number in range(500)]
    owner = do.many(ops)
    assert all(reply.granted for reply in owner)
    assert do.many([complete(reply, b"a" * 100, now=1) for reply in owner]) == [True] * 500
    assert [reply.granted for reply in do.many([claim(f"k{number}", now=2) for number in range(500)])] == (
        [False] * 500
    )
