"""Each move of a record as MongoDB's own expressions: the server decides and writes in one step, by its own clock.

The definition is core/moves.py; tests/stateful/ compares, reply by reply. What comes from outside is wrapped in
`$literal`: a key called "$scope" is a text, not the field of that name (S17).

A moment is a number where the operation brings its own, else an expression of the server's clock, which counts in
milliseconds and stands still during a command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from retrysafe.core.moves import KEPT_AFTER_COMPLETION, born
from retrysafe.core.ops import Advance, Claim, Complete, Forget, Release, Renew, Resolve, Suspect, Withdraw
from retrysafe.core.records import CLOSED, ENDED_KEPT, Answer
from retrysafe.core.states import OPEN, SETTLED
from retrysafe.core.times import FOREVER
from retrysafe.stores.mongo import documents

Expr: TypeAlias = Any
Stages: TypeAlias = list[dict[str, Any]]
Filter: TypeAlias = dict[str, Any]

NOTED: Expr = {"$ifNull": ["$ended", []]}
"""The tokens of its attempts, newest first: the present one's too, unless an older release granted that."""
ENDED: Expr = {"$filter": {"input": NOTED, "cond": {"$ne": ["$$this", "$token"]}}}

CLOCK: Expr = {"$multiply": [{"$toLong": "$$NOW"}, 1000]}
ROOT = "$$ROOT"

_OPEN = sorted(state.value for state in OPEN)
_SETTLED = sorted(state.value for state in SETTLED)


def literal(value: Any) -> Expr:
    return {"$literal": value}


def moment(now: int | None) -> Expr:
    return CLOCK if now is None else literal(now)


def after(now: int | None, duration: int) -> Expr:
    """`later(now, duration)`."""
    return {"$min": [{"$add": [moment(now), literal(duration)]}, literal(FOREVER)]}


# Claim ------------------------------------------------------------------------------------------


def claim(op: Claim) -> Stages:
    """The whole table of `grantable`, in its order. What is refused stays as it is, and nothing is written."""
    now = moment(op.now)
    accepted = [str(form) for form in (op.fingerprint, *op.alternatives)]
    over = {"$and": [{"$in": ["$state", _SETTLED]}, {"$lte": ["$expires", now]}]}
    cases: list[tuple[Expr, Expr]] = [
        ({"$eq": [{"$type": "$state"}, "missing"]}, _born(op)),
        ({"$in": [literal(op.token), {"$concatArrays": [["$token"], NOTED]}]}, ROOT),
        (over, ROOT if op.resumes else {**_born(op), "ended": _noted_next(op)}),
        ({"$not": [{"$in": ["$fingerprint", literal(accepted)]}]}, ROOT),
        *([({"$ne": ["$run", literal(op.resumes)]}, ROOT)] if op.resumes else []),
        (_is("released"), _taken_over(op)),
        (
            {"$and": [_is("claimed"), {"$lte": ["$lease_until", now]}, {"$ne": ["$on_lapse", "uncertain"]}]},
            _taken_over(op),
        ),
    ]
    branches = [{"case": case, "then": then} for case, then in cases]
    return [{"$replaceWith": {"$switch": {"branches": branches, "default": ROOT}}}]


def _is(state: str) -> Expr:
    return {"$eq": ["$state", state]}


def _born(op: Claim) -> Expr:
    """`born`, with the server's moments where the operation brings none."""
    made = {name: literal(value) for name, value in documents.write(born(op, op.now or 0)).items()}
    return {**made, "lease_until": after(op.now, op.lease), "created": moment(op.now), "started": moment(op.now)}


def _noted_next(op: Claim) -> Expr:
    """What `ended` becomes when the next attempt begins: its own token goes first."""
    before = {"$slice": [{"$concatArrays": [["$token"], ENDED]}, ENDED_KEPT]}
    return {"$concatArrays": [[literal(op.token)], before]}


def _taken_over(op: Claim) -> Expr:
    changed = {
        "state": "claimed",
        "attempt": {"$add": ["$attempt", 1]},
        "token": literal(op.token),
        "lease_until": after(op.now, op.lease),
        "on_lapse": literal(op.on_lapse),
        "note": "",
        "started": moment(op.now),
        "completed": 0,
        "expires": literal(FOREVER),
        "advances": 0,
        "ended": _noted_next(op),
    }
    # Without its date for the sweeper: an open record is never swept.
    return {"$mergeObjects": [{"$unsetField": {"field": "sweep", "input": ROOT}}, changed]}


# Fenced writes ----------------------------------------------------------------------------------


def renew(op: Renew) -> tuple[Filter, Stages]:
    condition = {"$or": [{"state": "claimed"}, {"state": "uncertain", "advances": {"$ne": CLOSED}}]}
    lease_until = {"$max": ["$lease_until", after(op.now, op.lease)]}
    return condition, [{"$set": {"state": "claimed", "lease_until": lease_until, "note": ""}}]


def advance(op: Advance) -> tuple[Filter, Stages]:
    """Only the next number. A document of an older release has none, which is as good as 0."""
    before: Filter = {"advances": op.number - 1} if op.number > 1 else {"advances": {"$in": [0, None]}}
    changed = {
        "state": "claimed",
        "advances": literal(op.number),
        "point": literal(op.point),
        "progress": literal(op.progress),
        "on_lapse": literal(op.on_lapse),
        "lease_until": after(op.now, op.lease),
        "note": "",
    }
    return _open() | before, [{"$set": changed}]


def complete(op: Complete) -> tuple[Filter, Stages]:
    return _open(), settled(op.now, "completed", "", op.answer)


def release(op: Release) -> tuple[Filter, Stages]:
    return _open(), settled(op.now, "released", op.note, None)


def withdraw(op: Withdraw) -> tuple[Filter, Stages]:
    """Released; and where it is untouched, expired at once. The date for the sweeper was made before that."""
    untouched = {"$and": [{"$eq": ["$attempt", 1]}, {"$eq": ["$point", ""]}]}
    at_once = {"$set": {"expires": {"$cond": [untouched, moment(op.now), "$expires"]}}}
    return _open(), [*settled(op.now, "released", op.note, None), at_once]


def suspect(op: Suspect) -> tuple[Filter, Stages]:
    marked = {"state": "uncertain", "note": literal(op.note)}
    if op.lapsed_only:
        lapsed = {"$expr": {"$lte": ["$lease_until", moment(op.now)]}}
        return {"state": "claimed", "on_lapse": "uncertain", **lapsed}, [{"$set": marked}]
    condition = {"$or": [{"state": "claimed"}, {"state": "uncertain", "advances": {"$ne": CLOSED}}]}
    return condition, [{"$set": {**marked, "advances": CLOSED}}]


def resolve(op: Resolve) -> tuple[Filter, Stages]:
    state = "released" if op.answer is None else "completed"
    lapsed = {"$expr": {"$lte": ["$lease_until", moment(op.now)]}}
    unknown = {"$or": [{"state": "uncertain"}, {"state": "claimed", "on_lapse": "uncertain", **lapsed}]}
    return unknown, settled(op.now, state, op.note, op.answer)


def forget(op: Forget) -> tuple[Filter, Stages]:
    # Released at a recovery point is unfinished work: its input and progress are what it resumes from.
    condition = {"$or": [{"state": "completed"}, {"state": "released", "point": ""}]}
    erased = {"status": "$answer.status", "headers": literal([]), "body": literal(b""), "gone": "forgotten"}
    answer = {"$cond": [{"$eq": ["$answer", None]}, None, erased]}
    return condition, [{"$set": {"answer": answer, "input": literal(b""), "progress": literal(b"")}}]


def _open() -> Filter:
    return {"state": {"$in": _OPEN}}


def settled(now: int | None, state: str, note: str, answer: Answer | None) -> Stages:
    """`settled`, and when the sweeper may come."""
    retained = {"$min": [{"$add": ["$created", "$retention"]}, literal(FOREVER)]}
    expires: Expr = {"$max": [retained, after(now, KEPT_AFTER_COMPLETION)]}
    if state == "released":
        expires = {"$cond": [{"$eq": ["$point", ""]}, expires, literal(FOREVER)]}
    changed = {
        "state": state,
        "lease_until": moment(now),
        "answer": literal(documents.write_answer(answer)),
        "note": literal(note),
        "completed": moment(now),
        "expires": expires,
    }
    return [{"$set": changed}, {"$set": {"sweep": SWEEP}}]


SWEEP: Expr = {
    "$cond": [
        {"$lt": ["$expires", literal(FOREVER)]},
        {"$toDate": {"$toLong": {"$ceil": {"$divide": ["$expires", 1000]}}}},
        "$$REMOVE",
    ]
}
"""For the TTL index, which wants a date. Never read by us: whether a record is expired is a comparison (I12)."""

MOVES: dict[type[Any], Callable[[Any], tuple[Filter, Stages]]] = {
    Renew: renew,
    Advance: advance,
    Complete: complete,
    Release: release,
    Withdraw: withdraw,
    Suspect: suspect,
    Resolve: resolve,
    Forget: forget,
}
