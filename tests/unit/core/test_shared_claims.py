"""A follower is told exactly what the store would have told it just after the leader, or it asks for itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from retrysafe.core.ops import Claim
from retrysafe.core.shared_claims import can_follow, share_reply
from retrysafe.core.states import State
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import DAY, claim, complete, release, renew, suspect, withdraw

NOW = 100.0
TOKEN, ENDED = b"o" * 16, b"e" * 16

Prepare = Callable[[MemoryStore], None]


def new(store: MemoryStore) -> None:
    """Nobody has claimed it."""


def claimed(store: MemoryStore) -> None:
    store.execute(claim(lease=1_000, token=TOKEN))


def lapsed(store: MemoryStore) -> None:
    store.execute(claim(lease=1, token=TOKEN))


def lapsed_rerun(store: MemoryStore) -> None:
    store.execute(claim(lease=1, token=TOKEN, on_lapse="rerun"))


def second_attempt(store: MemoryStore) -> None:
    store.execute(release(store.execute(claim(token=ENDED))))
    assert store.execute(claim(lease=1_000, token=TOKEN)).granted


def released(store: MemoryStore) -> None:
    store.execute(release(store.execute(claim(token=TOKEN))))


def withdrawn(store: MemoryStore) -> None:
    store.execute(withdraw(store.execute(claim(token=TOKEN))))


def completed(store: MemoryStore) -> None:
    store.execute(complete(store.execute(claim(token=TOKEN))))


def expired(store: MemoryStore) -> None:
    store.execute(complete(store.execute(claim(token=TOKEN, retention=1, now=-DAY)), now=-DAY))


def uncertain(store: MemoryStore) -> None:
    store.execute(suspect(store.execute(claim(token=TOKEN))))


STATES: tuple[Prepare, ...] = (
    new, claimed, lapsed, lapsed_rerun, second_attempt, released, withdrawn, completed, expired, uncertain,
)  # fmt: skip
BODIES = (b"{}", b"another")
TOKENS = (b"f" * 16, TOKEN, ENDED)
CASES = list(product(STATES, BODIES, BODIES, TOKENS))


@pytest.mark.parametrize(("prepare", "led", "followed", "token"), CASES)
def test_a_shared_reply_is_the_store_s_own(prepare: Prepare, led: bytes, followed: bytes, token: bytes) -> None:
    store = MemoryStore()
    prepare(store)
    leader = claim(body=led, token=b"l" * 16, now=NOW)
    follower = claim(body=followed, token=token, now=NOW)
    shared = share_reply(follower, store.execute(leader))
    own = store.execute(follower)
    assert shared is None or shared == own
    if prepare in (new, completed, claimed, second_attempt) and token == TOKENS[0]:
        assert shared is not None, "what a hot key needs is shared"


def test_nothing_is_shared_that_may_still_be_granted() -> None:
    """A leader with another body is refused; the follower would run."""
    store = MemoryStore()
    released(store)
    refused = store.execute(claim(body=b"another", now=NOW))
    assert refused.record is not None
    assert refused.record.state is State.RELEASED
    assert share_reply(claim(now=NOW), refused) is None
    assert store.execute(claim(now=NOW)).granted


def test_a_record_that_cannot_be_seen_yet_is_not_shared() -> None:
    reply = MemoryStore().execute(claim(now=NOW))
    assert share_reply(claim(now=NOW), reply._replace(granted=False, record=None)) is None


def test_only_the_same_question_is_shared() -> None:
    leader = claim(now=None)
    assert can_follow(claim(now=None), leader)
    assert not can_follow(claim(now=NOW), leader), "at another moment"
    assert not can_follow(claim(now=None, resumes=b"r" * 16), leader), "a run to resume"
    assert not can_follow(leader, claim(now=None, resumes=b"r" * 16))
    again: Claim = claim(now=None, token=leader.token)
    assert not can_follow(again, leader), "the same claim, sent again"


def test_a_renewed_lease_is_alive() -> None:
    store = MemoryStore()
    owner = store.execute(claim(lease=1, token=TOKEN))
    assert store.execute(renew(owner, lease=1_000))
    assert share_reply(claim(now=NOW), store.execute(claim(now=NOW))) is not None
