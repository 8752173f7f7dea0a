"""What happened to one record, and what will: from the record, the ledger of its run and the audit rows that name it.
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import FOREVER_MICROS
from retrysafe.engine.audit import AuditRow


class Moment(NamedTuple):
    at: int
    what: str
    detail: str = ""
    future: bool = False


def build_timeline(
    record: Record, now: int, rows: Iterable[AuditRow], ledger: Iterable[dict[str, Any]] = ()
) -> list[Moment]:
    moments = [Moment(record.created, "claimed for the first time")]
    if record.attempt > 1:
        moments.append(Moment(record.started, f"attempt {record.attempt} began"))
    moments += _from_ledger(ledger)
    moments += _from_state(record, now)
    moments += [
        Moment(row.at, f"{row.actor}: {row.action}", f"{row.because} ({row.outcome}{_show_result(row)})")
        for row in rows
    ]
    if record.state in (State.COMPLETED, State.RELEASED) and record.expires < FOREVER_MICROS:
        moments.append(Moment(record.expires, "expires: after that the key is new"))
    marked = [moment._replace(future=moment.at > now) for moment in moments]
    return sorted(marked, key=lambda moment: moment.at)


def _from_state(record: Record, now: int) -> list[Moment]:
    if record.state is State.COMPLETED:
        status = record.answer.status if record.answer is not None else ""
        return [Moment(record.completed, f"completed: {status}", record.note)]
    if record.state is State.RELEASED:
        return [Moment(record.completed, "released without a final answer", record.note)]
    lapsed = record.lease_until <= now
    what = "the lease lapsed" if lapsed else "the lease ends, if its owner does not renew it"
    found = [Moment(record.lease_until, what)]
    if record.state is State.UNCERTAIN:
        found.append(Moment(max(record.started, min(record.lease_until, now)), "marked as uncertain", record.note))
    return found


def _from_ledger(ledger: Iterable[dict[str, Any]]) -> list[Moment]:
    found = []
    for entry in ledger:
        step, state, undone = entry["step"], entry["state"], entry["undo_at"]
        if entry["at"]:
            # The state is of now: a step whose undo began was something else when it ran.
            found.append(Moment(entry["at"], f"step {step}" if undone else f"step {step}: {state}", entry["error"]))
        if undone:
            found.append(Moment(undone, f"undo of {step}: {state}"))
    return found


def _show_result(row: AuditRow) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in row.result.items())
    return f": {shown}" if shown else ""
