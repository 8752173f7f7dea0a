"""Each transition of a record as an update pipeline: the server decides and writes in one step, by its own clock.

core/moves.py defines the transitions; tests/stateful/ compares the two, reply by reply. Every value from outside is
wrapped in `$literal`: a key named "$scope" is a text, not the field of that name (S17).

A time is a number if the operation has a `now`. Otherwise it is an expression of the server's clock, which counts in
milliseconds and does not advance during a command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from retrysafe.core.moves import KEPT_AFTER_COMPLETION_MICROS, build_new_record
from retrysafe.core.ops import Advance, Claim, Complete, Forget, Release, Renew, Resolve, Suspect, Withdraw
from retrysafe.core.records import CLOSED, MAX_ENDED_TOKENS, Answer
from retrysafe.core.states import OPEN, SETTLED
from retrysafe.core.times import FOREVER_MICROS, add_micros
from retrysafe.stores.mongo import documents

Expr: TypeAlias = Any
Stages: TypeAlias = list[dict[str, Any]]
Filter: TypeAlias = dict[str, Any]

ATTEMPT_TOKENS: Expr = {"$ifNull": ["$ended", []]}
"""The tokens of all attempts, newest first. It has the current token too, unless an older release granted the claim."""
ENDED_TOKENS: Expr = {"$filter": {"input": ATTEMPT_TOKENS, "cond": {"$ne": ["$$this", "$token"]}}}

CLOCK: Expr = {"$multiply": [{"$toLong": "$$NOW"}, 1000]}
ROOT = "$$ROOT"

_OPEN = sorted(state.value for state in OPEN)
_SETTLED = sorted(state.value for state in SETTLED)


def as_literal(value: Any) -> Expr:
    return {"$literal": value}


def moment_expr(now: int | None) -> Expr:
    return CLOCK if now is None else as_literal(now)


def later_expr(now: int | None, duration: int) -> Expr:
    """`later(now, duration)` of core/times.py."""
    return {"$min": [{"$add": [moment_expr(now), as_literal(duration)]}, as_literal(FOREVER_MICROS)]}


# Claim ------------------------------------------------------------------------------------------


def claim(op: Claim) -> Stages:
    """The whole table of `decide_grant`, in its order. A refused claim changes nothing."""
    now = moment_expr(op.now)
    accepted = [str(form) for form in (op.fingerprint, *op.alternatives)]
    over = {"$and": [{"$in": ["$state", _SETTLED]}, {"$lte": ["$expires", now]}]}
    cases: list[tuple[Expr, Expr]] = [
        (_MISSING, _new_record_expr(op)),
        ({"$in": [as_literal(op.token), {"$concatArrays": [["$token"], ATTEMPT_TOKENS]}]}, ROOT),
        (over, ROOT if op.resumes else _new_record_expr(op, {"ended": _next_tokens_expr(op)})),
        ({"$not": [{"$in": ["$fingerprint", as_literal(accepted)]}]}, ROOT),
        *([({"$ne": ["$run", as_literal(op.resumes)]}, ROOT)] if op.resumes else []),
        (_state_is("released"), _takeover_expr(op)),
        (
            {"$and": [_state_is("claimed"), {"$lte": ["$lease_until", now]}, {"$ne": ["$on_lapse", "uncertain"]}]},
            _takeover_expr(op),
        ),
    ]
    branches = [{"case": case, "then": then} for case, then in cases]
    return [{"$replaceWith": {"$switch": {"branches": branches, "default": ROOT}}}]


def birth(op: Claim) -> Stages:
    """The first line of that table: a missing record is created. A record that exists stays as it is, and the reply
    shows whether another line of the table may grant the claim. One line is much less to send and to parse."""
    return [{"$replaceWith": {"$cond": [_MISSING, _new_record_expr(op), ROOT]}}]


_MISSING: Expr = {"$eq": [{"$type": "$state"}, "missing"]}


def _state_is(state: str) -> Expr:
    return {"$eq": ["$state", state]}


def _new_record_expr(op: Claim, changed: Expr | None = None) -> Expr:
    """`build_new_record`, with times of the server's clock if the operation has no `now`. The record is one literal,
    not one for each field: the server parses each expression for itself."""
    made = as_literal(documents.write_record(build_new_record(op, op.now or 0)))
    if op.now is not None:
        return made if changed is None else {"$mergeObjects": [made, changed]}
    times = {"lease_until": later_expr(None, op.lease), "created": CLOCK, "started": CLOCK}
    return {"$mergeObjects": [made, times | (changed or {})]}


def _next_tokens_expr(op: Claim) -> Expr:
    """The value of `ended` when the next attempt begins: the token of that attempt is the first."""
    before = {"$slice": [{"$concatArrays": [["$token"], ENDED_TOKENS]}, MAX_ENDED_TOKENS]}
    return {"$concatArrays": [[as_literal(op.token)], before]}


def _takeover_expr(op: Claim) -> Expr:
    changed = {
        "state": "claimed",
        "attempt": {"$add": ["$attempt", 1]},
        "token": as_literal(op.token),
        "lease_until": later_expr(op.now, op.lease),
        "on_lapse": as_literal(op.on_lapse),
        "note": "",
        "started": moment_expr(op.now),
        "completed": 0,
        "expires": as_literal(FOREVER_MICROS),
        "advances": 0,
        "ended": _next_tokens_expr(op),
    }
    # Without the date of the TTL index: an open record is never deleted.
    return {"$mergeObjects": [{"$unsetField": {"field": "sweep", "input": ROOT}}, changed]}


# Fenced writes ----------------------------------------------------------------------------------


def renew(op: Renew) -> tuple[Filter, Stages]:
    condition = {"$or": [{"state": "claimed"}, {"state": "uncertain", "advances": {"$ne": CLOSED}}]}
    lease_until = {"$max": ["$lease_until", later_expr(op.now, op.lease)]}
    return condition, [{"$set": {"state": "claimed", "lease_until": lease_until, "note": ""}}]


def advance(op: Advance) -> tuple[Filter, Stages]:
    """Accept only the next number. A document of an older release has no number, which counts as 0."""
    before: Filter = {"advances": op.number - 1} if op.number > 1 else {"advances": {"$in": [0, None]}}
    changed = {
        "state": "claimed",
        "advances": as_literal(op.number),
        "point": as_literal(op.point),
        "progress": as_literal(op.progress),
        "on_lapse": as_literal(op.on_lapse),
        "lease_until": later_expr(op.now, op.lease),
        "note": "",
    }
    return build_open_filter() | before, [{"$set": changed}]


def release(op: Release) -> tuple[Filter, Stages]:
    return build_open_filter(), settle_stages(op.now, "released", op.note, None)


def withdraw(op: Withdraw) -> tuple[Filter, Stages]:
    """Release the record. If nothing was done for it yet, it expires at once; the date of the TTL index stays."""
    untouched = {"$and": [{"$eq": ["$attempt", 1]}, {"$eq": ["$point", ""]}]}
    at_once = {"$set": {"expires": {"$cond": [untouched, moment_expr(op.now), "$expires"]}}}
    return build_open_filter(), [*settle_stages(op.now, "released", op.note, None), at_once]


def suspect(op: Suspect) -> tuple[Filter, Stages]:
    marked = {"state": "uncertain", "note": as_literal(op.note)}
    if op.lapsed_only:
        lapsed = {"$expr": {"$lte": ["$lease_until", moment_expr(op.now)]}}
        return {"state": "claimed", "on_lapse": "uncertain", **lapsed}, [{"$set": marked}]
    condition = {"$or": [{"state": "claimed"}, {"state": "uncertain", "advances": {"$ne": CLOSED}}]}
    return condition, [{"$set": {**marked, "advances": CLOSED}}]


def resolve(op: Resolve) -> tuple[Filter, Stages]:
    state = "released" if op.answer is None else "completed"
    lapsed = {"$expr": {"$lte": ["$lease_until", moment_expr(op.now)]}}
    unknown = {"$or": [{"state": "uncertain"}, {"state": "claimed", "on_lapse": "uncertain", **lapsed}]}
    return unknown, settle_stages(op.now, state, op.note, op.answer)


def forget(op: Forget) -> tuple[Filter, Stages]:
    # A record that was released at a recovery point is unfinished work, which resumes from its input and progress.
    condition = {"$or": [{"state": "completed"}, {"state": "released", "point": ""}]}
    erased = {"status": "$answer.status", "headers": as_literal([]), "body": as_literal(b""), "gone": "forgotten"}
    answer = {"$cond": [{"$eq": ["$answer", None]}, None, erased]}
    return condition, [{"$set": {"answer": answer, "input": as_literal(b""), "progress": as_literal(b""), "note": ""}}]


def build_open_filter() -> Filter:
    return {"state": {"$in": _OPEN}}


def settle_stages(now: int | None, state: str, note: str, answer: Answer | None) -> Stages:
    """`settle` of core/moves.py, and the date of the TTL index."""
    retained = {"$min": [{"$add": ["$created", "$retention"]}, as_literal(FOREVER_MICROS)]}
    expires: Expr = {"$max": [retained, later_expr(now, KEPT_AFTER_COMPLETION_MICROS)]}
    if state == "released":
        expires = {"$cond": [{"$eq": ["$point", ""]}, expires, as_literal(FOREVER_MICROS)]}
    changed = {
        "state": state,
        "lease_until": moment_expr(now),
        "answer": as_literal(documents.write_answer(answer)),
        "note": as_literal(note),
        "completed": moment_expr(now),
        "expires": expires,
    }
    return [{"$set": changed}, {"$set": {"sweep": _sweep_date_expr("$expires")}}]


def _sweep_date_expr(expires: Expr) -> Expr:
    """The date of the TTL index. No operation reads it: `expires` decides whether a record has expired (I12)."""
    date = {"$toDate": {"$toLong": {"$ceil": {"$divide": [expires, 1000]}}}}
    return {"$cond": [{"$lt": [expires, as_literal(FOREVER_MICROS)]}, date, "$$REMOVE"]}


# Completions ------------------------------------------------------------------------------------


def build_completion(op: Complete) -> dict[str, Any]:
    """The completion as a statement of an `update`, whose `let` is COMPLETION_TIMES. The document is found by its id
    alone, which needs no query plan. So the fence is part of the update: a record of another attempt, or one that is
    settled, stays as it is and does not count as modified."""
    fenced = [
        {"$eq": ["$token", as_literal(op.fence.token)]},
        {"$eq": ["$attempt", as_literal(op.fence.attempt)]},
        {"$in": ["$state", _OPEN]},
    ]
    written = as_literal({"state": "completed", "answer": documents.write_answer(op.answer), "note": ""})
    completed = {"$mergeObjects": [ROOT, written, _COMPLETED_EXPR]}
    statement = {"q": {"_id": op.id}, "u": [{"$replaceWith": {"$cond": [{"$and": fenced}, completed, ROOT]}}]}
    if op.now is not None:
        statement["c"] = {"now": op.now, "kept": add_micros(op.now, KEPT_AFTER_COMPLETION_MICROS)}
    return statement


COMPLETION_TIMES: Filter = {"now": CLOCK, "kept": later_expr(None, KEPT_AFTER_COMPLETION_MICROS)}
"""Variables of the command. A statement whose operation has a `now` has constants of the same names, which go first."""

_COMPLETED_EXPR: Expr = {
    "$let": {
        "vars": {
            "expires": {"$max": [{"$min": [{"$add": ["$created", "$retention"]}, FOREVER_MICROS]}, "$$kept"]},
        },
        "in": {
            "lease_until": "$$now",
            "completed": "$$now",
            "expires": "$$expires",
            "sweep": _sweep_date_expr("$$expires"),
        },
    }
}


MOVES: dict[type[Any], Callable[[Any], tuple[Filter, Stages]]] = {
    Renew: renew,
    Advance: advance,
    Release: release,
    Withdraw: withdraw,
    Suspect: suspect,
    Resolve: resolve,
    Forget: forget,
}
