"""Compare a store with the memory store: both get the same random operations, and all replies and records must agree.

    TestMine = compare(lambda: Do.sync(MyStore())).TestCase

A run has three keys, two requests, times within a few ticks of every boundary that also go backwards, fences of earlier
attempts, repeated tokens, all operations, and batches. The memory store is core/moves.py and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from retrysafe.core.keys import record_id
from retrysafe.core.ops import (
    Advance,
    Claim,
    ClaimReply,
    Complete,
    Forget,
    List,
    Lookup,
    Op,
    Reap,
    Release,
    Renew,
    Resolve,
    Stats,
    Suspect,
    Withdraw,
)
from retrysafe.core.records import Answer, Fence, Fingerprint
from retrysafe.core.states import State
from retrysafe.core.times import FOREVER_MICROS, HOUR_MICROS
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.driver import Do
from retrysafe.testing.late_copies import COPIED_OPS, has_succeeded, may_change_again


@dataclass(frozen=True)
class Name:
    """One of the keys. They differ in kind, namespace and scope too, so that filters are tested."""

    kind: str
    namespace: str
    scope: str
    key: str

    @property
    def id(self) -> bytes:
        return record_id(self.kind, self.namespace, self.scope, self.key)  # type: ignore[arg-type]  # a kind


NAMES = (Name("http", "n1", "a", "k1"), Name("job", "n1", "b", "k2"), Name("http", "n2", "a", "k3"))
FINGERPRINTS = (Fingerprint("raw1", b"\x00" * 32, 1), Fingerprint("raw1", b"\xff" * 32, 1))
LEASES = (1, 2, 5, HOUR_MICROS, FOREVER_MICROS)
RETENTIONS = (1, 3, HOUR_MICROS, HOUR_MICROS + 2, FOREVER_MICROS)
ON_LAPSE = ("resume", "uncertain", "rerun")
ANSWERS = (
    Answer(200, b"", ()),
    Answer(201, b"\x00\xff one", (("link", "a"), ("link", "b"))),
    Answer(200, b"", (), gone="stream"),
)
LIMITS = (1, 2, 7)

# Leases are a few ticks, and a record expires an hour after its end: times on these two scales meet every boundary.
moments = st.builds(
    lambda hours, ticks: hours * HOUR_MICROS + ticks,
    st.sampled_from([0, 0, 0, 1, 1, 2, 3]),
    st.integers(min_value=0, max_value=8),
)
names = st.sampled_from(NAMES)
texts = st.sampled_from(["", "p1", "p2", "ä'\"\\"])
blobs = st.sampled_from([b"", b"\x00\xff", b"progress"])
answers = st.sampled_from(ANSWERS)


@dataclass(frozen=True)
class Choice:
    """The random parts of an operation. Each operation uses some of them."""

    verb: str
    name: Name
    fingerprint: Fingerprint
    lease: int
    retention: int
    on_lapse: Any
    text: str
    blob: bytes
    answer: Answer | None
    flag: bool
    pick: int
    number: int
    now: int


VERBS = (
    *("claim", "claim", "claim", "resume", "renew", "advance"),
    *("complete", "release", "withdraw", "suspect", "resolve", "forget"),
)

choices = st.builds(
    Choice,
    verb=st.sampled_from([*VERBS, "lookup"]),
    name=names,
    fingerprint=st.sampled_from([FINGERPRINTS[0], FINGERPRINTS[0], FINGERPRINTS[1]]),
    lease=st.sampled_from(LEASES),
    retention=st.sampled_from(RETENTIONS),
    on_lapse=st.sampled_from(ON_LAPSE),
    text=texts,
    blob=blobs,
    answer=st.one_of(st.none(), answers),
    flag=st.booleans(),
    pick=st.integers(min_value=0, max_value=11),
    number=st.sampled_from([1, 1, 1, 2, 2, 3]),
    now=moments,
)


class Comparison(RuleBasedStateMachine):
    """The state machine. `compare` makes a subclass that opens the store under test."""

    open_do: Callable[[], Do]

    def __init__(self) -> None:
        super().__init__()
        self.tested = type(self).open_do()
        self.oracle = Do.sync(MemoryStore())
        self.grants = 0
        self.claims: list[Claim] = []
        self.done: list[Any] = []
        self.fences: dict[bytes, list[Fence]] = {name.id: [] for name in NAMES}
        self.now = 0

    def teardown(self) -> None:
        self.tested.close()

    # One operation --------------------------------------------------------------------------------

    @rule(choice=choices)
    def run_one(self, choice: Choice) -> None:
        self.compare_reply(self.build(choice))

    @rule(choice=choices)
    def send_twice(self, choice: Choice) -> None:
        """I11: the operation is sent again after a lost reply."""
        op = self.build(choice)
        self.compare_reply(op)
        self.compare_reply(op)

    @precondition(lambda self: self.claims)
    @rule(pick=st.integers(min_value=0, max_value=11), now=moments)
    def resend_earlier_claim(self, pick: int, now: int) -> None:
        """An old claim arrives once more, with the same token at another time."""
        self.compare_reply(replace(self.claims[pick % len(self.claims)], now=now))

    @precondition(lambda self: self.done)
    @rule(pick=st.integers(min_value=0, max_value=11), now=moments)
    def send_late_copy(self, pick: int, now: int) -> None:
        """I32: an old write arrives once more and changes nothing."""
        copy = replace(self.done[pick % len(self.done)], now=now)
        before = self.oracle(Lookup(copy.id, now)).record
        self.compare_reply(copy)
        after = self.oracle(Lookup(copy.id, now)).record
        if before is not None:
            assert after == before, f"a late copy of {copy} changed {before} into {after}"

    @rule(batch=st.lists(choices, max_size=3, unique_by=lambda choice: choice.name))
    def run_batch(self, batch: list[Choice]) -> None:
        ops = [self.build(choice) for choice in batch]
        expected = [self.oracle(op) for op in ops]
        replies = self.tested.many(ops)
        assert replies == expected, f"{ops} in one batch gave {replies}, the memory store gives {expected}"
        for op, reply in zip(ops, expected, strict=True):
            self.remember(op, reply)

    # Over all keys --------------------------------------------------------------------------------

    @rule(limit=st.sampled_from(LIMITS), now=moments)
    def compare_reap(self, limit: int, now: int) -> None:
        """Reap to the end: a store may choose which records to reap first, but not how many."""
        for _ in range(len(NAMES) + 1):
            self.compare_reply(Reap(limit, now))
        self.done.clear()  # a reaped record knows no tokens, so a copy of its claim may be granted

    @rule(
        namespace=st.sampled_from([None, "n1", "n2"]),
        state=st.sampled_from([None, *State]),
        kind=st.sampled_from([None, "http", "job"]),
        scope=st.sampled_from([None, "a", "b"]),
        lapsed=st.booleans(),
        limit=st.sampled_from(LIMITS),
        now=moments,
    )
    def compare_listing(self, **filters: Any) -> None:
        op = List(**filters)
        pages = self.tested.pages(op)
        assert all(len(page) <= op.limit for page in pages)
        listed = {record.id: record for page in pages for record in page}
        assert listed == self.oracle.list_all(op), f"{op} lists {listed}"

    @rule(now=moments)
    def compare_stats(self, now: int) -> None:
        self.compare_reply(Stats(now))

    @invariant()
    def compare_records(self) -> None:
        for name in NAMES:
            tested = self.tested(Lookup(name.id, self.now)).record
            expected = self.oracle(Lookup(name.id, self.now)).record
            assert tested == expected, f"{name.key} is {tested}, the memory store has {expected}"

    # ----------------------------------------------------------------------------------------------

    def compare_reply(self, op: Op[Any]) -> None:
        """Run an operation on both stores and compare the replies."""
        expected, reply = self.oracle(op), self.tested(op)
        assert reply == expected, f"{op} gave {reply}, the memory store gives {expected}"
        self.remember(op, expected)

    def remember(self, op: Op[Any], reply: Any) -> None:
        """Keep claims, writes that succeeded and granted fences, to send them again later."""
        self.now = getattr(op, "now", 0) or 0
        if isinstance(op, COPIED_OPS) and has_succeeded(reply) and not may_change_again(op):
            self.done = [op, *self.done][:12]
        if isinstance(op, Claim):
            self.claims.append(op)
            if isinstance(reply, ClaimReply) and reply.granted and reply.record is not None:
                self.fences[op.id].append(reply.record.fence)

    def choose_fence(self, choice: Choice) -> Fence:
        """Mostly the newest fence of the key, often an older one, sometimes a wrong one."""
        known = self.fences[choice.name.id]
        if not known or choice.pick == 11:
            return Fence(1 + choice.pick % 2, b"nobody's token..")
        newest = known[-1]
        if choice.pick == 10:
            return newest._replace(attempt=newest.attempt + 1)
        return known[-1 - choice.pick % len(known)] if choice.pick > 4 else newest

    def build(self, choice: Choice) -> Op[Any]:
        return BUILD[choice.verb](self, choice)

    def build_claim(self, choice: Choice) -> Claim:
        self.grants += 1
        return Claim(
            id=choice.name.id,
            namespace=choice.name.namespace,
            kind=choice.name.kind,
            scope=choice.name.scope,
            key=choice.name.key,
            target="POST /things",
            fingerprint=choice.fingerprint,
            token=self.grants.to_bytes(16, "big"),
            run=self.grants.to_bytes(16, "little"),
            lease=choice.lease,
            retention=choice.retention,
            on_lapse=choice.on_lapse,
            input=choice.blob,
            now=choice.now,
        )

    def build_resume(self, choice: Choice) -> Claim:
        """A claim that resumes one run: mostly the current one, sometimes an earlier one."""
        op, record = self.build_claim(choice), self.oracle(Lookup(choice.name.id, choice.now)).record
        current = b"another run....." if record is None else record.run
        resumed = current if choice.pick < 9 else self.claims[-1].run if self.claims else current
        return replace(op, resumes=resumed)


BUILD: dict[str, Callable[[Comparison, Choice], Op[Any]]] = {
    "claim": Comparison.build_claim,
    "resume": Comparison.build_resume,
    "renew": lambda m, c: Renew(c.name.id, m.choose_fence(c), c.lease, c.now),
    "advance": lambda m, c: Advance(c.name.id, m.choose_fence(c), c.number, c.text, c.blob, c.on_lapse, c.lease, c.now),
    "complete": lambda m, c: Complete(c.name.id, m.choose_fence(c), c.answer or ANSWERS[0], c.now),
    "release": lambda m, c: Release(c.name.id, m.choose_fence(c), c.text, c.now),
    "withdraw": lambda m, c: Withdraw(c.name.id, m.choose_fence(c), c.text, c.now),
    "suspect": lambda m, c: Suspect(c.name.id, m.choose_fence(c), c.text, c.flag, c.now),
    "resolve": lambda m, c: Resolve(c.name.id, m.choose_fence(c), c.answer, c.text, c.now),
    "forget": lambda m, c: Forget(c.name.id, m.choose_fence(c), c.now),
    "lookup": lambda m, c: Lookup(c.name.id, c.now),
}


def compare(do_factory: Callable[[], Do]) -> type[RuleBasedStateMachine]:
    """Make a state machine that compares the memory store with the store of `do_factory`, which must be empty each
    time."""
    return type("AgainstMemory", (Comparison,), {"open_do": staticmethod(do_factory)})
