"""What operators do with keys: resolve, release, forget. Every change is a fenced operation, decided by a pure function
from the record that was read: a key that changed since then is left alone. bulk.py does it for many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.core.moves import is_outcome_unknown
from retrysafe.core.ops import Forget, List, Lookup, Release, Resolve
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import SETTLED, State
from retrysafe.core.times import format_time
from retrysafe.engine.audit import AUDIT_KIND
from retrysafe.engine.resolving import RESULT_KINDS, WITHOUT_ANSWER, advise_on_settled, convert_to_result
from retrysafe.engine.sealing import is_sealed
from retrysafe.engine.why import state_for_people
from retrysafe.errors import NotUncertain, StoreError, UsageError
from retrysafe.operators.errors import ChangedUnderneath, Refused
from retrysafe.operators.follow_up import build_command
from retrysafe.operators.record_search import RecordSearch
from retrysafe.operators.resolutions import check_resolution, has_sealed
from retrysafe.operators.session import LeftOpen, Reason, Session

MAX_SEALED_LOOK_RECORDS = 1_000
"""How many finished records are read to find out whether their application has a key ring."""


class Decision(NamedTuple):
    """What is to be done with a record: an operation, or the reason why not."""

    op: Any = None
    refusal: str = ""


Decide = Callable[[Record, int], Decision]


# The decisions: pure ------------------------------------------------------------------------------


def decide_resolve(record: Record, now: int, answer: Answer | None, because: str) -> Decision:
    """`answer` None: it did not happen."""
    if not is_outcome_unknown(record, now):
        return Decision(refusal=str(_not_uncertain_error(record, now)))
    try:
        stored = None if answer is None else convert_to_result(record, answer)
    except UsageError as error:
        return Decision(refusal=f"{error}. Nothing was changed")
    return Decision(Resolve(record.id, record.fence, stored, because))


def _not_uncertain_error(record: Record, now: int) -> NotUncertain:
    advice = advise_on_settled(record, now, None)
    return NotUncertain(record.key, record.state.value, record.attempt, record.note, advice)


def decide_release(record: Record, now: int, because: str, *, owner_is_dead: bool) -> Decision:
    """Only what may run again without a doubt: a guard of unknown outcome is resolved instead."""
    if record.state in SETTLED:
        return Decision(refusal=f"{record.key!r} is {record.state.value}: nobody holds it")
    if record.on_lapse == "uncertain" and not is_outcome_unknown(record, now):
        return Decision(
            refusal=f"{record.key!r}: its owner is at work, and its lease lasts until "
            f"{format_time(record.lease_until)}; look again then. If it is uncertain by then, say how it ended: "
            f"{_build_resolve_command(record)}"
        )
    if is_outcome_unknown(record, now):
        return Decision(
            refusal=f"{record.key!r}: nobody knows how its work ended, so it must not simply run again; say how it "
            f"ended: {_build_resolve_command(record)}"
        )
    if not record.lapsed(now) and not owner_is_dead:
        return Decision(
            refusal=f"{record.key!r}: its owner is at work, and its lease lasts until "
            f"{format_time(record.lease_until)}; "
            "wait for that, or say --owner-is-dead if you know that its process is gone"
        )
    return Decision(Release(record.id, record.fence, because))


def _build_resolve_command(record: Record) -> str:
    words = ("keys", "resolve", record.id.hex()[:16], "--id")
    return build_command(*words, namespace=record.namespace, then="--happened | --did-not-happen --because TEXT")


def decide_forget(record: Record, now: int) -> Decision:
    if record.kind == AUDIT_KIND:
        return Decision(refusal=f"{record.key!r} is an audit row: it stays for its retention, and nobody empties it")
    if record.state not in SETTLED or (record.state is State.RELEASED and record.point):
        shown = state_for_people(record, now)
        return Decision(refusal=f"{record.key!r} is {shown}: unfinished work needs its bytes; finish it first")
    return Decision(Forget(record.id, record.fence))


def is_forgotten(record: Record) -> bool:
    """Whether there is nothing left to erase."""
    kept = record.answer is not None and (record.answer.body or record.answer.headers)
    return not (kept or record.input or record.progress or record.note)


def describe_sealed(record: Record) -> str:
    return (
        f"{record.key!r} belongs to an application with a key ring, and this command has none: the application could "
        "not read the answer, and the key could not be resolved again. Nothing was changed. Give --app MODULE:SAFE "
        f'instead of the URL, or call it from Python: safe.resolve("{record.id.hex()}", happened=True, '
        'answer=Answer(...), because="..."); or leave out --answer: a retry then learns that the answer was not kept'
    )


# Actions ------------------------------------------------------------------------------------------


class KeyAction(NamedTuple):
    """What is done: its name, its decision, the state that a bulk action looks for, and details for the audit row."""

    name: str
    decide: Decide
    state: State
    details: dict[str, Any]


def make_resolve(session: Session, because: str, *, happened: bool, answer: Answer | None = None) -> KeyAction:
    """Say how an uncertain attempt ended. `answer` is what retries get, if it happened and somebody has the answer."""
    check_resolution(happened=happened, answer=answer)

    def decide(record: Record, now: int) -> Decision:
        if answer is not None and not session.has_ring and (is_sealed(record) or are_others_sealed(session)):
            return Decision(refusal=describe_sealed(record))
        return decide_resolve(record, now, (answer or WITHOUT_ANSWER) if happened else None, because)

    return KeyAction("keys resolve", decide, State.UNCERTAIN, {"happened": happened})


def are_others_sealed(session: Session) -> bool:
    """Whether finished records of the application are encrypted. A guard that a crash left shows nothing of it, so a
    bounded number of others is looked at."""
    query = List(session.namespace, State.COMPLETED, examine=MAX_SEALED_LOOK_RECORDS)
    return has_sealed(RecordSearch(session.execute, query, MAX_SEALED_LOOK_RECORDS))


def make_release(because: str, *, owner_is_dead: bool = False) -> KeyAction:
    def decide(record: Record, now: int) -> Decision:
        return decide_release(record, now, because, owner_is_dead=owner_is_dead)

    return KeyAction("keys release", decide, State.CLAIMED, {})


def make_forget() -> KeyAction:
    return KeyAction("keys forget", decide_forget, State.COMPLETED, {})


class ActedRecord(NamedTuple):
    """A record after an action, and the id of the audit row."""

    record: Record
    audit: str


def act_on_record(
    session: Session, record: Record, action: KeyAction, reason: Reason, attempt: int | None = None
) -> ActedRecord:
    """Act on one record as it was read. With `attempt`: only if it is still in this attempt."""
    reason.entry(action.name)  # without a reason nothing is done
    if attempt not in (None, record.attempt):
        raise ChangedUnderneath(
            f"{record.key!r} is in attempt {record.attempt} now, and attempt {attempt} was asked for: it changed "
            "underneath. Look at it again before you decide"
        )
    now = session.read_time()
    decision = action.decide(record, now)
    if decision.op is None:
        raise Refused(decision.refusal)
    details = {"before": state_for_people(record, now), "attempt": record.attempt, **action.details}
    with session.act(reason.entry(action.name, (record.id.hex(),), **details)) as audit:
        if not session.execute(decision.op):
            raise changed_error(session, record)
        try:
            after = session.execute(Lookup(record.id)).record or record
        except StoreError as error:
            raise LeftOpen(audit, error, done=True) from error
        audit.result = {"after": after.state.value, **summarize_answer(record, decision.op)}
    return ActedRecord(after, audit.id)


def summarize_answer(record: Record, op: Any) -> dict[str, Any]:
    """What the audit row says of the answer that an action stores: its status. Pure. What a function returned has
    none."""
    answer = op.answer if isinstance(op, Resolve) else None
    if answer is None or answer.gone or record.kind in RESULT_KINDS:
        return {}
    return {"status": answer.status}


def changed_error(session: Session, record: Record) -> ChangedUnderneath:
    found = session.execute(Lookup(record.id)).record
    now = "gone" if found is None else f"{found.state.value}, attempt {found.attempt}"
    why = f": {found.note}" if found is not None and found.note else ""
    return ChangedUnderneath(
        f"{record.key!r} changed underneath: it is {now} now{why}. Nothing was changed by this command",
        build_command("keys", "why", record.id.hex()[:16], namespace=record.namespace),
    )
