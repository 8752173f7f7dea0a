"""Runs of operations: find, list, resume, undo, cancel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from retrysafe.core.keys import Key, derive
from retrysafe.core.moves import is_outcome_unknown, is_submitted
from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.core.times import format_time
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.safe import RetrySafe
from retrysafe.engine.why import state_for_people
from retrysafe.errors import OperationChanged, UsageError
from retrysafe.operations.journal import BY_PLACE, OperationJournal, build_ledger, describe_next_step, list_sent
from retrysafe.operations.operation import Operation
from retrysafe.operations.run import read_journal
from retrysafe.operators import record_search
from retrysafe.operators.errors import ChangedUnderneath, NotFound, Refused
from retrysafe.operators.follow_up import APP_PLACEHOLDER, build_command
from retrysafe.operators.record_search import ID_DIGITS, RecordQuery, RecordSearch, Report, cursor_before
from retrysafe.operators.session import Reason, Session

RunVerb = Literal["resume", "undo", "cancel"]


def _report_nothing(examined: int) -> None:
    pass


# Acting -------------------------------------------------------------------------------------------


class ActedRun(NamedTuple):
    """The answer of a run after an action, and the id of the audit row."""

    answer: Answer
    audit: str
    kept: tuple[str, ...] = ()
    """After an undo: the steps whose effect was left in the other system."""


def act_on_run(
    safe: RetrySafe,
    session: Session,
    record: Record,
    verb: RunVerb,
    reason: Reason,
    *,
    leave_effects: bool = False,
    was_not_sent: bool = False,
) -> ActedRun:
    """Resume, undo or cancel one run, with an audit row. `leave_effects`: the operator says that what was done and
    cannot be undone may stay. `was_not_sent`: the operator says that a step which may have
    been sent was not; only then is it sent under another key, or once more although it may not be repeated."""
    reason.entry(f"operations {verb}")
    now = session.read_time()
    operation = safe.operations.get(record.target)
    refusal = why_not(record, now, verb, leave_effects=leave_effects)
    if not refusal and verb == "resume" and not was_not_sent and operation is not None:
        refusal = why_not_resume(record, now, operation.find_unknown_step(record))
    left = list_left_effects(record, operation) if verb == "undo" and operation is not None and not refusal else ()
    if left and not leave_effects:
        refusal = why_not_undo(record, left)
    if refusal:
        raise Refused(refusal)
    details = {"before": state_for_people(record, now), "attempt": record.attempt}
    if was_not_sent:
        details["was_not_sent"] = True
    with session.act(reason.entry(f"operations {verb}", (record.id.hex(),), **details)) as audit:
        if operation is None:
            raise OperationChanged(record.target, "this code does not declare it")
        result = CALLS[verb](operation, record.id, reason.because, was_not_sent)
        if inspect.isawaitable(result):
            result = wait_for(result)
        if result.replayed:
            raise ChangedUnderneath(
                f"the run {record.id.hex()[:16]} was finished meanwhile ({result.answer.status}); nothing was done"
            )
        audit.result = {"status": result.answer.status} | ({"kept": list(left)} if left else {})
    return ActedRun(result.answer, audit.id, left)


CALLS: dict[RunVerb, Callable[[Operation, bytes, str, bool], Any]] = {
    "resume": lambda operation, run_id, because, not_sent: operation.resume_id(run_id, because, not_sent=not_sent),
    "undo": lambda operation, run_id, because, _: operation.undo_id(run_id, because),
    "cancel": lambda operation, run_id, because, _: operation.cancel_id(run_id, because),
}


def why_not(record: Record, now: int, verb: str, *, leave_effects: bool = False) -> str:
    """Why a run cannot be resumed, undone or cancelled; empty if it can. Pure."""
    short = record.id.hex()[:16]
    if record.state is State.COMPLETED:
        status = record.answer.status if record.answer is not None else 200
        more = "; what it did can only be taken back by new work of your own" if verb == "undo" else ""
        return f"the run {short} is finished with {status}: there is nothing to {verb}{more}"
    if record.state is State.CLAIMED and not record.lapsed(now):
        return f"its owner is at work on the run {short}, and its lease lasts until {format_time(record.lease_until)}"
    if verb != "cancel":
        return ""
    if is_outcome_unknown(record, now):
        then = "--happened [--answer FILE] | --did-not-happen --because TEXT"
        resolve = build_command("keys", "resolve", short, "--id", namespace=record.namespace, then=then)
        return f"the outcome of the run {short} is unknown; say how it ended: {resolve}"
    if not is_submitted(record) and not leave_effects:
        began = [entry["step"] for entry in build_ledger(OperationJournal.decode(record.progress))]
        what = f"has begun {', '.join(began)}" if began else "was begun, and its first step may have been sent"
        return f"the run {short} {what}: undo it, or say --leave-effects to leave what was done"
    return ""


def why_not_resume(record: Record, now: int, unknown_step: str) -> str:
    """Why a run cannot be resumed before somebody has looked. Pure."""
    if not unknown_step or not is_outcome_unknown(record, now):
        return ""
    short = record.id.hex()[:16]
    resolve = build_command(
        "keys", "resolve", short, "--id", namespace=record.namespace, then="--happened --because TEXT"
    )
    return (
        f"the step {unknown_step!r} of the run {short} may have happened, and would be sent again. Look in the other "
        f"system: if it did not happen, say --was-not-sent; if it did, complete the run by hand: {resolve}"
    )


def list_left_effects(record: Record, operation: Operation) -> tuple[str, ...]:
    """The foreign steps that an undo would leave: sent, or perhaps sent, and without an undo. Pure. If the journal does
    not say what was sent last, it may have been any of them."""
    journal = read_journal(record, operation.steps, operation.rule)
    lasting = [step.name for step in operation.steps.values() if step.kind == "foreign" and step.undo is None]
    if journal.undoing is not None or is_submitted(record):
        return ()
    sent = {entry.step for entry in journal.entries if entry.state in ("begun", "done")} | {*list_sent(journal)}
    unrecorded = journal.rule == BY_PLACE and not journal.is_fully_recorded(record.attempt)
    if unrecorded and not list_sent(journal):
        return tuple(lasting)
    return tuple(name for name in lasting if name in sent)


def why_not_undo(record: Record, left: tuple[str, ...]) -> str:
    """Why a run is not undone before the operator has said that these steps may stay as they are. Pure."""
    steps = ", ".join(map(repr, left))
    verb = "has" if len(left) == 1 else "have"
    return (
        f"{steps} of the run {record.id.hex()[:16]} may have been sent, and {verb} no undo: what was done there would "
        "stay, and a client who believes that it was undone does it again. Look in the other system and take it back "
        "there; then say --leave-effects, and the rest is undone"
    )


# Finding ------------------------------------------------------------------------------------------


def find_operations(safe: RetrySafe, name: str | None) -> list[Operation]:
    found = [each for each in safe.operations.values() if name in (None, each.name)]
    if name is not None and not found:
        known = ", ".join(sorted(safe.operations)) or "none"
        raise UsageError(f"--name {name!r}: no such operation; there are {known}")
    return found


class RunSearch:
    """Finds the runs of operations among all records of an application. The target of a run holds the version of its
    operation after an "@"; the targets of guards and functions have none. At most `limit` records of each state are
    searched."""

    def __init__(
        self,
        safe: RetrySafe,
        limit: int | None = None,
        make_report: Callable[[], Report] = lambda: _report_nothing,
        examine: int = 0,
    ) -> None:
        self._safe, self._make_report, self._examine = safe, make_report, examine
        self._limit = record_search.MAX_EXAMINED_RECORDS if limit is None else limit
        self.unfinished: list[tuple[str, RecordSearch]] = []
        """The states whose search ended at its limit, each with its search."""

    def iter_unfinished_first(self) -> Iterator[Record]:
        """Runs that a person may have to look at come first, and are found by an index. Completed runs come last."""
        for state in (State.UNCERTAIN, State.CLAIMED):
            yield from self.iter_runs(state)
        yield from self.iter_runs(State.RELEASED, resting=True)
        yield from self.iter_runs(State.COMPLETED)

    def iter_state(self, state: State, cursor: str = "") -> Iterator[Record]:
        """The runs in a state. Uncertain runs include lapsed ones that will become uncertain (as in `keys list`)."""
        yield from self.iter_runs(state, cursor=cursor)
        if state is State.UNCERTAIN and not cursor:
            lapsed = self.iter_runs(State.CLAIMED, lapsed=True)
            yield from (record for record in lapsed if record.on_lapse == "uncertain")

    def iter_runs(
        self, state: State | None, *, cursor: str = "", resting: bool = False, lapsed: bool = False
    ) -> Iterator[Record]:
        query = List(self._safe.namespace, state, cursor=cursor, resting=resting, lapsed=lapsed, examine=self._examine)
        search = RecordSearch(self._safe.execute, query, self._limit, self._make_report())
        yield from (record for record in search if "@" in record.target)
        if search.cursor:
            name = state.value if state is not None else ""
            self.unfinished.append(("lapsed" if lapsed else name, search))


def find_run(
    safe: RetrySafe,
    wanted: str,
    *,
    by_id: bool = False,
    to_act: bool = False,
    make_report: Callable[[], Report] = lambda: _report_nothing,
) -> Record:
    """Find one run by its id, by the first eight or more digits of its id, or by its key. The key of a direct call is
    looked up; the key of a request needs a search. With `to_act=True` both are done: a call and a request may have
    the same key, and the command must not act on the wrong run."""
    digits = RecordQuery(wanted).digits
    if by_id and not digits:
        raise UsageError(f"--id {wanted!r}: an id is 8 to 64 digits, 0 to 9 and a to f; `operations list` shows them")
    found = {each.id: each for each in _look_up(safe, wanted, by_id)}
    all_seen = by_id and (len(digits) == ID_DIGITS or safe.store.capabilities.lists_by_id)
    if not (found or all_seen) or (to_act and not by_id):
        runs = RunSearch(safe, make_report=make_report)
        query = RecordQuery(wanted)
        named = (each for each in runs.iter_runs(None) if query.matches_id(each) or (each.key == wanted and not by_id))
        found |= {each.id: each for each in named}
        if runs.unfinished:
            raise UsageError(
                f"the search for {wanted!r} ended after {runs.unfinished[0][1].examined:,} records, and there are "
                "more: give its id, as `operations list` shows it, and --id"
            )
    if not found:
        listing = build_command("operations", "list", APP_PLACEHOLDER)
        raise NotFound(f"{wanted!r} names 0 runs", f"`{listing}` lists them")
    if len(found) != 1:
        which = "; ".join(f"{each.id.hex()[:16]} ({each.target}, {each.scope})" for each in list(found.values())[:10])
        raise UsageError(
            f"{wanted!r} names {len(found)} runs{': ' + which if which else ''}; give the id of one, and --id"
        )
    return next(iter(found.values()))


def _look_up(safe: RetrySafe, wanted: str, by_id: bool) -> Iterator[Record]:
    query = RecordQuery(wanted)
    digits = query.digits
    names = [] if by_id else sorted({operation.name for operation in safe.operations.values()})
    ids = [Key(wanted, name, "operation").id(safe.namespace) for name in names]
    for each in ids + ([bytes.fromhex(digits)] if len(digits) == ID_DIGITS else []):
        record = safe.execute(Lookup(each)).record
        if record is not None and record.namespace == safe.namespace:
            yield record
    if digits and safe.store.capabilities.lists_by_id:
        search = RecordSearch(safe.execute, List(cursor=cursor_before(digits)), record_search.MAX_EXAMINED_RECORDS)
        for record in takewhile(query.matches_id, search):
            if record.namespace == safe.namespace and "@" in record.target and len(digits) < ID_DIGITS:
                yield record


def summarize_run(record: Record, now: int) -> dict[str, Any]:
    return {
        "id": record.id.hex(),
        "operation": record.target,
        "key": record.key,
        "scope": record.scope,
        "state": record.state.value,
        "lapsed": record.lapsed(now),
        "point": record.point,
        "attempt": record.attempt,
        "created": format_time(record.created),
        "note": record.note,
    }


def summarize_operation(operation: Operation) -> dict[str, Any]:
    steps = [
        {
            "name": step.name,
            "kind": step.kind,
            "undo": step.undo is not None,
            "find": step.find is not None,
            "repeatable": step.repeatable,
        }
        for step in operation.steps.values()
    ]
    return {"operation": operation.target, "steps": steps}


def list_sent_keys(record: Record, journal: OperationJournal, operation: Operation | None) -> dict[str, str]:
    """The idempotency key of each foreign call that was sent or may have been, by the step's name and the number of the
    call: what to search for in the other system. Pure. Empty if this code does not declare the operation."""
    steps = operation.steps if operation is not None else {}
    called = [(place, entry.step) for place, entry in enumerate(journal.entries)]
    if not called or journal.entries[-1].state != "begun":
        called += [(len(journal.entries), name) for name in list_sent(journal)]
    keys = {}
    for place, name in called:
        step = steps.get(name)
        if step is None or step.kind != "foreign":
            continue
        part = str(journal.call_number(name, place))
        keys[f"{name}#{part}"] = derive(record.run, step.service, name, part=part)
        if place < len(journal.entries) and journal.entries[place].state in ("undoing", "undone", "stuck"):
            keys[f"undo of {name}#{part}"] = derive(record.run, step.service, name, part=part, undo=True)
    return keys


def describe_next(record: Record, journal: OperationJournal) -> str:
    return "" if record.state is State.COMPLETED else describe_next_step(journal, record.point)
