"""The states of a record, and every move between them.

Theory
------
A record is one life of a key. It begins `claimed`: one caller was granted the key and holds a lease. From there
it goes one of three ways. The owner knows how the work ended and settles the record (`completed`: there is an
answer; `released`: nothing final happened, and any caller may try again). Or nobody knows (`uncertain`), and then
nothing runs until an operator, code that asked the other system, or the owner itself says how it ended.

The rules of the table below:

1.  Only a claim starts work, and the store decides each claim atomically.
2.  Every move out of an open state (claimed, uncertain) needs the fencing token: attempt and token together.
    The attempt grows on each takeover. The token differs in each life: a record that was reaped and claimed
    again does not accept its former owner, although its attempt starts at 1 again.
3.  Open states never expire. Settled states (completed, released) expire by comparison of `expires` with
    the store's clock. An expired record counts as absent: the next claim starts a new life.
4.  A completed record is written once. Its only exits are expiry and `forget`, which erases the answer's
    bytes but keeps the fact that it happened.
5.  An owner whose lease lapsed still owns the record until another attempt takes over: its fence matches. This
    holds also after the sweeper marked the record uncertain, because the owner knows best how the work ended. An
    owner that marked it itself has given up: it may still settle, but its renewals and advances no longer count.
6.  A message that arrives late changes nothing. The advances of an attempt are numbered and only the next one
    counts; a renewal never shortens a lease; a token is granted once, and a record keeps the last eight that ended.

What a lapsed lease means depends on the record's `on_lapse`, which the claim and each advance write: `resume` and
`rerun` let the next claim take over, `uncertain` does not.

The diagram in docs/explanation/state-machine.md is drawn from `TRANSITIONS` by tools/diagram.py.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple


class State(Enum):
    """The state of a record. Its lower-case value is stored."""

    CLAIMED = "claimed"
    """An owner works on it. Exits: the owner (complete, release, withdraw, suspect), a claim once the lease lapsed
    (if `on_lapse` allows it), the sweeper (suspect, once lapsed, if `on_lapse` is uncertain)."""

    RELEASED = "released"
    """An attempt ended without a final answer. Exits: the next claim; after expiry the reaper. A withdrawn record is
    released and expired at once; the reaper waits for an hour."""

    COMPLETED = "completed"
    """The answer is stored and is replayed from now on. Exits: none before expiry; then a claim or the reaper."""

    UNCERTAIN = "uncertain"
    """Work began and nobody knows how it ended. Exits: resolve (an operator, or code that asked the
    other system), or the owner itself."""


OnLapse = Literal["resume", "uncertain", "rerun"]
"""What a lapsed lease means now: take over at the recovery point, ask an operator, or run from the start."""

OPEN = frozenset({State.CLAIMED, State.UNCERTAIN})
SETTLED = frozenset({State.COMPLETED, State.RELEASED})
STATES: dict[str, State] = {state.value: state for state in State}


class Transition(NamedTuple):
    """One arrow of the machine. `source` None is "no record"; `target` None is "the record is gone"."""

    source: State | None
    move: str
    target: State | None
    when: str
    who: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition(None, "claim", State.CLAIMED, "no record", "anyone"),
    Transition(State.COMPLETED, "claim", State.CLAIMED, "expired: a new life, a new run", "anyone"),
    Transition(State.RELEASED, "claim", State.CLAIMED, "expired, or same fingerprint", "anyone"),
    Transition(State.CLAIMED, "claim", State.CLAIMED, "lapsed, on_lapse resume or rerun, same fingerprint", "anyone"),
    Transition(State.CLAIMED, "renew", State.CLAIMED, "fence", "owner"),
    Transition(State.CLAIMED, "advance", State.CLAIMED, "fence, and the next number", "owner"),
    Transition(State.CLAIMED, "complete", State.COMPLETED, "fence", "owner"),
    Transition(State.CLAIMED, "release", State.RELEASED, "fence", "owner"),
    Transition(State.CLAIMED, "withdraw", State.RELEASED, "fence; no endpoint was entered", "owner"),
    Transition(
        State.CLAIMED,
        "suspect",
        State.UNCERTAIN,
        "fence; the sweeper: lapsed, on_lapse uncertain",
        "owner or sweeper",
    ),
    Transition(State.UNCERTAIN, "renew", State.CLAIMED, "fence: the owner is back, and has not given up", "owner"),
    Transition(State.UNCERTAIN, "advance", State.CLAIMED, "fence: the owner is back, and has not given up", "owner"),
    Transition(State.UNCERTAIN, "suspect", State.UNCERTAIN, "fence: the owner gives up as well", "owner"),
    Transition(State.UNCERTAIN, "complete", State.COMPLETED, "fence: the owner is back", "owner"),
    Transition(State.UNCERTAIN, "release", State.RELEASED, "fence: the owner is back", "owner"),
    Transition(State.UNCERTAIN, "withdraw", State.RELEASED, "fence: the owner is back", "owner"),
    Transition(
        State.CLAIMED, "resolve", State.COMPLETED, "lapsed, on_lapse uncertain; with an answer", "operator or probe"
    ),
    Transition(
        State.CLAIMED, "resolve", State.RELEASED, "lapsed, on_lapse uncertain; it did not happen", "operator or probe"
    ),
    Transition(State.UNCERTAIN, "resolve", State.COMPLETED, "with an answer", "operator or probe"),
    Transition(State.UNCERTAIN, "resolve", State.RELEASED, "it did not happen", "operator or probe"),
    Transition(State.COMPLETED, "forget", State.COMPLETED, "the bytes are erased, the fact stays", "operator"),
    Transition(State.RELEASED, "forget", State.RELEASED, "the bytes are erased, the fact stays", "operator"),
    Transition(State.COMPLETED, "reap", None, "expired, an hour after its end", "reaper"),
    Transition(State.RELEASED, "reap", None, "expired, an hour after its end", "reaper"),
)


def has_transition(source: State | None, move: str) -> bool:
    """Whether the table has an arrow for this move out of this state."""
    return any(t.source is source and t.move == move for t in TRANSITIONS)
