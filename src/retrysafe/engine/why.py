"""Why a key is in its state, what its next retry gets, and what a person can do. Pure: from the record and the time, by
the same functions that decide claims."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.core.judge import LAPSED_UNSEEN
from retrysafe.core.moves import Grant, decide_grant, is_outcome_unknown, is_submitted
from retrysafe.core.ops import Claim
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import FOREVER_MICROS, SECOND_MICROS, format_time
from retrysafe.engine.audit import AUDIT_KIND
from retrysafe.engine.resume_times import compute_due

REFUSED_BY_CODE = "by OperationChanged"
"""How the note of a run ends that this code refused to go on with (operations/flow.py: release_at_point)."""
BEGUN_BY_OTHER_CODE = "it was begun by other code"
"""How the note of a run begins whose journal this code could not take up (operations/flow.py: run_attempt)."""
OVERDUE_MICROS = 180 * SECOND_MICROS
"""A run that has been due for so long was seen by no worker: a worker looks each minute."""
DEAD_LETTER = "dead letter:"
"""How the note of a run begins that is not tried again before an operator has looked."""


class Explanation(NamedTuple):
    state: str
    """The state as a person sees it: a lapsed guard is uncertain."""
    because: str
    next_retry: str
    """What the same request gets now."""
    by_itself: str
    """What happens if nobody does anything."""
    actions: tuple[str, ...]
    """What a person can do: the verbs of `retrysafe keys` and `retrysafe operations`, best first."""


def is_run(record: Record) -> bool:
    """Whether the record is a run of an operation: its target holds the operation's version."""
    return record.kind == "operation" or "@" in record.target


def was_refused_by_code(record: Record) -> bool:
    """Whether the last attempt at a run ended because its code is not the code that began the run."""
    return is_run(record) and (record.note.endswith(REFUSED_BY_CODE) or record.note.startswith(BEGUN_BY_OTHER_CODE))


def state_for_people(record: Record, now: int) -> str:
    return "uncertain" if is_outcome_unknown(record, now) else record.state.value


def explain(record: Record, now: int) -> Explanation:
    state = state_for_people(record, now)
    if state == "uncertain":
        return _explain_uncertain(record)
    if record.state is State.CLAIMED:
        return _explain_claimed(record, now)
    return _explain_settled(record, now, state)


def _explain_uncertain(record: Record) -> Explanation:
    note = record.note or LAPSED_UNSEEN
    resume = ("operations resume", "operations undo", "keys resolve") if is_run(record) else ("keys resolve",)
    if record.kind == "audit":
        note = "an operator's command ended before it wrote down what it did; look at the records that it names"
        resume = ("keys resolve",)
    return Explanation(
        "uncertain",
        f"attempt {record.attempt} began at {format_time(record.started)}, and nobody knows how it ended: {note}",
        "refused: outcome unknown (500, outcome-unknown)",
        "nothing: it stays until an operator says how it ended (or code of yours does: safe.resolve), or its owner "
        "comes back",
        resume,
    )


def _explain_claimed(record: Record, now: int) -> Explanation:
    at = f" at recovery point {record.point!r}" if record.point else ""
    if is_submitted(record) and is_run(record):
        return Explanation(
            "claimed",
            f"it was submitted at {format_time(record.started)}, and no worker has started it",
            "accepted (202), or it runs where the operation is called",
            "the worker starts it",
            ("operations resume", "operations cancel"),
        )
    if not record.lapsed(now):
        later = {
            "uncertain": "it becomes uncertain",
            "resume": f"the next retry or the worker resumes it{at}",
            "rerun": "the next retry runs it again",
        }
        return Explanation(
            "claimed",
            f"attempt {record.attempt} has been at work since {format_time(record.started)}{at}",
            "refused: in progress (409, retry later)",
            f"its owner finishes; if it dies, then after {format_time(record.lease_until)} {later[record.on_lapse]}",
            (),
        )
    how = f"resumes it{at}" if record.on_lapse == "resume" else "runs it again"
    actions = ("operations resume", "operations undo") if is_run(record) else ("keys release",)
    return Explanation(
        "claimed",
        f"the owner of attempt {record.attempt} went silent; its lease lapsed at {format_time(record.lease_until)}",
        f"it runs: attempt {record.attempt + 1} {how}",
        f"the next retry {how}"
        + (f"; {describe_worker(record, now, 'the worker does the same')}" if is_run(record) else ""),
        actions,
    )


def _explain_settled(record: Record, now: int, state: str) -> Explanation:
    gone = _describe_expiry(record, now)
    if _decide_retry(record, now) is Grant.REBIRTH:
        return Explanation(state, "it has expired", "it runs as a new request", "the reaper deletes it", ())
    if record.state is State.COMPLETED:
        kept = record.answer is not None and not record.answer.gone
        status = record.answer.status if record.answer is not None else 200
        answer = f"the stored answer ({status}), and nothing runs" if kept else "told that the answer was not kept"
        forget = ("keys forget",) if kept and record.kind != AUDIT_KIND else ()
        why = f"attempt {record.attempt} was completed at {format_time(record.completed)}"
        return Explanation(state, why + (f": {record.note}" if record.note else ""), answer, gone, forget)
    at = f" from recovery point {record.point!r}" if record.point else ""
    why = f"attempt {record.attempt} ended without a final answer" + (f": {record.note}" if record.note else "")
    later = describe_worker(record, now, f"the worker resumes it{at}") if record.point else gone
    if was_refused_by_code(record):
        return Explanation(
            state,
            f"its code, which is not the code that began the run, refused attempt {record.attempt}: {record.note}",
            "refused again by that code; code that fits goes on with it",
            "nothing, until code that fits runs: deploy it, or read what `retrysafe operations show` says of the run",
            ("operations show", "operations resume", "operations undo", "operations cancel"),
        )
    actions = ("operations resume", "operations undo", "operations cancel") if is_run(record) else ()
    return Explanation(state, why, f"it runs: attempt {record.attempt + 1}{at}", later, actions)


def describe_worker(record: Record, now: int, what: str) -> str:
    """What a worker does with a run that has no owner, and when. The times are those of a worker with the settings that
    it has unless others are given."""
    due = compute_due(record, record.attempt)
    if now < due + OVERDUE_MICROS:
        return f"{what} after {format_time(due)}"
    return (
        f"{what}; it has been due since {format_time(due)}: look whether a worker runs that declares {record.target!r}"
    )


def _describe_expiry(record: Record, now: int) -> str:
    if record.expires >= FOREVER_MICROS:
        return "nothing: it never expires"
    return f"it expires at {format_time(record.expires)}; after that the key is new"


def _decide_retry(record: Record, now: int) -> Grant | None:
    """How the same request would be granted now."""
    retry = Claim(
        record.id, record.namespace, record.kind, record.scope, record.key, record.target, record.fingerprint,
        b"", b"", 0, 0, record.on_lapse,
    )  # fmt: skip
    return decide_grant(record, retry, now)
