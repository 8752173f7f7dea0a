"""Fingerprints under a key ring (S12): a short body cannot be guessed, and rotation makes no false mismatch."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.fingerprint import fingerprint_body
from retrysafe.core.keys import Key
from retrysafe.core.records import Answer, Fingerprint
from retrysafe.core.states import State
from retrysafe.engine.guard import Task
from retrysafe.engine.sealing import KeyRing
from retrysafe.errors import CorruptRecord, FingerprintMismatch, InProgress, OutcomeUnknown
from retrysafe.policy import Policy
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import release, suspect
from tests.unit.engine.hands import Work

OLD, NEW, LOST = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32
PIN = b'{"pin":"471"}'
POLICY = Policy(abandoned="rerun")


def plain(body: bytes = PIN) -> Fingerprint:
    return fingerprint_body("application/json", [body])


def ring(*names: str, keyed: bool) -> KeyRing:
    keys = {"old": OLD, "new/2026:11": NEW, "lost": LOST}
    return KeyRing({name: keys[name] for name in names}, active=names[0], keyed_fingerprints=keyed)


class Process:
    """One release of an application, with its own idea of the ring."""

    def __init__(self, store: MemoryStore, keyring: KeyRing | None) -> None:
        self.safe = RetrySafe(store, keyring=keyring)
        self.store = store

    def task(self, body: bytes = PIN, key: str = "k") -> Task:
        return self.safe.build_task(Key(key, "tenant"), "POST /pin", plain(body), POLICY)

    def __call__(self, body: bytes = PIN, key: str = "k") -> Any:
        return self.safe.guard(self.task(body, key), Work())

    def claim(self, key: str = "k") -> Any:
        reply = self.safe.execute(self.task(key=key).build_claim())
        assert reply.granted
        return reply


def stored(store: MemoryStore) -> Fingerprint:
    (record,) = store._records.values()
    return record.fingerprint


def guessed(fingerprint: Fingerprint) -> str | None:
    """Every PIN there is, against what the store holds: a tenth of a second for a bare digest."""
    for pin in map("".join, itertools.product("0123456789", repeat=3)):
        if plain(b'{"pin":"%s"}' % pin.encode()).digest == fingerprint.digest:
            return pin
    return None


def test_a_short_body_is_not_guessed_from_its_fingerprint() -> None:
    bare, keyed = MemoryStore(), MemoryStore()
    Process(bare, ring("old", keyed=False))()
    Process(keyed, ring("old", keyed=True))()
    assert guessed(stored(bare)) == "471"
    assert guessed(stored(keyed)) is None
    assert stored(keyed).algorithm == plain().algorithm + "+old"
    assert hashlib.sha256(PIN).digest() != stored(keyed).digest


def test_the_name_of_a_key_survives_being_written_down() -> None:
    store = MemoryStore()
    Process(store, ring("new/2026:11", keyed=True))()
    found = stored(store)
    assert found.key == "new%2F2026%3A11"
    assert Fingerprint.parse(str(found)) == found


BEFORE = {
    "before there was a ring": None,
    "plain, under the old key": ring("old", keyed=False),
    "keyed with the old key": ring("old", keyed=True),
    "rotated, plain": ring("new/2026:11", "old", keyed=False),
    "rotated and keyed": ring("new/2026:11", "old", keyed=True),
}
TO_COME = [name for name in BEFORE if name.startswith("rotated")]


@pytest.mark.parametrize("reader", TO_COME)
@pytest.mark.parametrize("writer", BEFORE)
def test_rotation_makes_no_mismatch_and_no_false_replay(writer: str, reader: str) -> None:
    """Open, completed, released and uncertain records of every age, met by processes of every age that still run."""
    store = MemoryStore()
    wrote, reads = Process(store, BEFORE[writer]), Process(store, BEFORE[reader])
    opens = BEFORE[writer] is not None  # what was stored before there was a ring needs accept_plain to be opened
    live, parted, doubted = (wrote.claim(key) for key in ("live", "parted", "doubted"))
    store.execute(release(parted, now=None))
    store.execute(suspect(doubted, now=None))
    if opens:
        wrote(key="done")
        assert reads(key="done").replayed
        with pytest.raises(FingerprintMismatch):
            reads(b'{"pin":"000"}', key="done")
    with pytest.raises(InProgress):
        reads(key="live")
    with pytest.raises(OutcomeUnknown):
        reads(key="doubted")
    assert not reads(key="parted").replayed
    for key in ("live", "parted", "doubted"):
        with pytest.raises(FingerprintMismatch):
            reads(b'{"pin":"000"}', key=key)
    assert live.record.state is State.CLAIMED


@pytest.mark.parametrize(("writer", "reader"), list(itertools.permutations(TO_COME)))
def test_processes_that_differ_in_it_work_side_by_side(writer: str, reader: str) -> None:
    store = MemoryStore()
    one, other = Process(store, BEFORE[writer]), Process(store, BEFORE[reader])
    first = one(key="a")
    assert (first.answer, other(key="a").answer) == (Answer(200, b"called"), Answer(200, b"called"))
    assert one(key="a").replayed


@pytest.mark.parametrize("reads", [ring("new/2026:11", "old", keyed=True), None], ids=["another ring", "no ring"])
def test_a_record_whose_key_left_the_ring_is_unreadable_and_no_mismatch(reads: KeyRing | None) -> None:
    """ "Send a new key" would be a second charge."""
    store = MemoryStore()
    Process(store, ring("lost", keyed=True)).claim()
    with pytest.raises(CorruptRecord, match=r"key 'lost', which is not in the key ring; add it as an old key"):
        Process(store, reads)()
