"""Encryption: nothing readable in the store, nothing that was moved or changed opens, keys rotate."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Key, KeyRing, RetrySafe
from retrysafe.core.ops import Advance, Claim, Complete, Lookup, Op, Release, Resolve, Suspect
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.engine.sealing import MAGIC, Sealer
from retrysafe.errors import CorruptRecord, UsageError
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing import builders

CANARY = "canary-7f3a"
OLD, NEW = secrets.token_bytes(32), secrets.token_bytes(32)
RING = KeyRing({"2026-05": OLD})


class Sealed:
    """A memory store seen through a key ring, and its records as they are stored."""

    def __init__(self, ring: KeyRing | None = RING) -> None:
        self.store = MemoryStore()
        self.sealer = Sealer(ring)

    def do(self, op: Op[Any]) -> Any:
        return self.sealer.unseal(self.store.execute(self.sealer.seal(op)))

    def raw(self) -> Record:
        [record] = self.store._records.values()
        return record

    def put(self, record: Record) -> None:
        self.store._records[record.id] = record

    def completed(self, key: str = "k", answer: Answer | None = None) -> Claim:
        """A record with everything in it that can be sealed."""
        claim = replace(builders.claim(key), input=f"{CANARY} input".encode())
        fence = self.do(claim).record.fence
        assert self.do(Advance(claim.id, fence, 1, "p", f"{CANARY} progress".encode(), "resume", 10**6, 0))
        headers = [("location", f"/{CANARY}"), ("x", "1"), ("x", "2")]
        assert self.do(Complete(claim.id, fence, answer or Answer(201, f"{CANARY} body".encode(), headers), 0))
        return claim


# Round trip --------------------------------------------------------------------------------------


def test_what_was_sealed_comes_back_and_is_not_readable_meanwhile() -> None:
    sealed = Sealed()
    claim = sealed.completed()
    record = sealed.do(Lookup(claim.id, 0)).record
    assert (record.input, record.progress) == (f"{CANARY} input".encode(), f"{CANARY} progress".encode())
    assert record.answer == Answer(201, f"{CANARY} body".encode(), [("location", f"/{CANARY}"), ("x", "1"), ("x", "2")])
    assert CANARY not in repr(sealed.raw())
    assert sealed.do(claim).record == record
    assert sealed.do(builders.listing()).records == (record,)


@pytest.mark.parametrize(
    "answer", [Answer(204), Answer(200, b"\0\xff" * 1000), Answer(200, gone="stream")], ids=["empty", "binary", "gone"]
)
def test_every_kind_of_answer(answer: Answer) -> None:
    sealed = Sealed()
    claim = sealed.completed(answer=answer)
    assert sealed.do(Lookup(claim.id, 0)).record.answer == answer


def test_an_answer_a_person_gave_is_sealed_too() -> None:
    sealed = Sealed()
    claim = builders.claim("k")
    fence = sealed.do(claim).record.fence
    sealed.do(Suspect(claim.id, fence, "?", now=0))
    assert sealed.do(Resolve(claim.id, fence, Answer(200, CANARY.encode()), "asked", 0))
    assert CANARY not in repr(sealed.raw())
    assert sealed.do(Lookup(claim.id, 0)).record.answer.body == CANARY.encode()


def test_nothing_is_encrypted_twice_alike() -> None:
    one, two = RING.encrypt(b"x", b"y"), RING.encrypt(b"x", b"y")
    assert one != two
    assert RING.decrypt(one, b"y") == RING.decrypt(two, b"y") == b"x"


def test_without_a_ring_nothing_is_touched() -> None:
    claim = builders.claim("k")
    assert Sealer(None).seal(claim) is claim
    release = Release(claim.id, Sealed().do(claim).record.fence)
    assert Sealer(RING).seal(release) is release


def test_the_canary_is_nowhere_in_the_file(tmp_path: Path) -> None:
    """S11: grep the database's files."""
    safe = RetrySafe(f"sqlite:///{tmp_path / 'x.db'}", keyring=RING)

    @safe.once("read:{n}")
    def read(n: int) -> dict[str, str]:
        return {"secret": CANARY}

    assert read(1) == read(1) == {"secret": CANARY}
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    safe.close()
    files |= {f"{path.name} closed": path.read_bytes() for path in tmp_path.iterdir()}
    assert sum(map(len, files.values())) > 0
    assert [name for name, data in files.items() if CANARY.encode() in data] == []
    assert [name for name, data in files.items() if MAGIC in data] != []


# Tampering ---------------------------------------------------------------------------------------


def corrupt(sealed: Sealed, claim: Claim) -> str:
    with pytest.raises(CorruptRecord) as refused:
        sealed.do(Lookup(claim.id, 0))
    assert claim.id.hex()[:16] in str(refused.value)
    return str(refused.value)


def test_a_ciphertext_moved_to_another_row_does_not_open() -> None:
    one, two = Sealed(), Sealed()
    first, second = one.completed("first"), two.completed("second")
    for field in ("input", "progress", "answer"):
        moved = two.raw()._replace(**{field: getattr(one.raw(), field)})
        other = Sealed()
        other.put(moved)
        assert "changed or moved" in corrupt(other, second)
    assert first.id != second.id


def test_a_ciphertext_moved_to_another_field_does_not_open() -> None:
    sealed = Sealed()
    claim = sealed.completed()
    sealed.put(sealed.raw()._replace(input=sealed.raw().progress))
    assert "changed or moved" in corrupt(sealed, claim)


def test_an_answer_under_another_status_does_not_open() -> None:
    sealed = Sealed()
    claim = sealed.completed()
    answer = sealed.raw().answer
    assert answer is not None
    sealed.put(sealed.raw()._replace(answer=Answer(200, answer.body)))
    assert "changed or moved" in corrupt(sealed, claim)


def test_a_ciphertext_changed_or_cut_anywhere_does_not_open() -> None:
    sealed = Sealed()
    claim = sealed.completed()
    whole = sealed.raw().input
    for at in range(len(whole)):
        sealed.put(sealed.raw()._replace(input=whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]))
        corrupt(sealed, claim)
        if at:
            sealed.put(sealed.raw()._replace(input=whole[:at]))
            corrupt(sealed, claim)


def test_plain_text_under_a_ring_is_refused() -> None:
    sealed = Sealed()
    claim = sealed.completed()
    sealed.put(sealed.raw()._replace(input=b"plain"))
    assert "not encrypted" in corrupt(sealed, claim)


def test_a_function_whose_record_was_tampered_with_does_not_run() -> None:
    store = MemoryStore()
    safe = RetrySafe(store, keyring=RING)
    runs: list[int] = []

    @safe.once("x:{n}")
    def x(n: int) -> None:
        runs.append(n)

    x(1)
    [record] = store._records.values()
    store._records[record.id] = record._replace(answer=Answer(200, b"rs1 nonsense"))
    with pytest.raises(CorruptRecord):
        x(1)
    assert runs == [1]


# Rotation ----------------------------------------------------------------------------------------


def test_keys_rotate() -> None:
    sealed = Sealed(RING)
    claim = sealed.completed()
    sealed.sealer = Sealer(KeyRing({"2026-11": NEW, "2026-05": OLD}))
    assert sealed.do(Lookup(claim.id, 0)).record.answer.body == f"{CANARY} body".encode()
    other = sealed.completed("later")
    sealed.sealer = Sealer(KeyRing({"2026-11": NEW}))
    assert sealed.do(Lookup(other.id, 0)).record.state is State.COMPLETED
    with pytest.raises(CorruptRecord, match="key '2026-05', which is not in the ring; add it"):
        sealed.do(Lookup(claim.id, 0))


def test_another_key_of_the_same_name_does_not_open() -> None:
    sealed = Sealed(RING)
    claim = sealed.completed()
    sealed.sealer = Sealer(KeyRing({"2026-05": NEW}))
    corrupt(sealed, claim)


def test_the_first_key_is_active_unless_said() -> None:
    assert KeyRing({"b": NEW, "a": OLD}).active == "b"
    ring = KeyRing({"b": NEW, "a": OLD}, active="a")
    assert KeyRing({"a": OLD}).decrypt(ring.encrypt(b"x", b""), b"") == b"x"


@pytest.mark.parametrize(
    ("keys", "active", "expected"),
    [
        ({}, None, "secrets.token_bytes(32)"),
        ({"a": b"short"}, None, "'a' of the key ring is 5 bytes"),
        ({"a": "x" * 32}, None, "'a' of the key ring is str"),
        ({"": OLD}, None, "''"),
        ({"ä" * 200: OLD}, None, "1 to 255 bytes"),
        ({"a": OLD}, "b", "'b' is not in the ring; it holds a"),
    ],
)
def test_a_ring_that_cannot_work(keys: Any, active: str | None, expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        KeyRing(keys, active)
    assert expected in str(refused.value)


def test_keys_are_not_shown() -> None:
    assert repr(OLD)[2:10] not in repr(vars(RING))
    assert Key("k", "t") != Key("k", "u")
