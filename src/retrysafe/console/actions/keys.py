"""Resolve, release, forget and reveal one key. Each is bound to the attempt that the page showed, needs a reason, and
leaves an audit row. After it, the page of the key shows that row."""

from __future__ import annotations

import re

from retrysafe.console.access import REVEAL
from retrysafe.console.messages import ConsoleResponse, redirect
from retrysafe.console.pages.record import gather
from retrysafe.console.rendering import show_bytes
from retrysafe.console.visit import Visit
from retrysafe.core.records import Record
from retrysafe.core.times import format_time
from retrysafe.errors import UsageError
from retrysafe.operators.errors import ChangedUnderneath
from retrysafe.operators.key_actions import KeyAction, act_on_record, make_forget, make_release, make_resolve
from retrysafe.operators.resolutions import DEFAULT_CONTENT_TYPE, DEFAULT_STATUS, GivenAnswer, decide_answer

STATUSES = range(200, 600)
_CONTENT_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+( *;[ -~]*)?", re.ASCII)


def resolve(visit: Visit, id: str) -> ConsoleResponse:
    record = visit.find_record(id, "keys resolve")
    happened = read_happened(visit)
    answer = decide_answer(happened=happened, given=read_answer(visit))
    action = make_resolve(visit.session, visit.reason.because, happened=happened, answer=answer)
    return act(visit, record, action)


def release(visit: Visit, id: str) -> ConsoleResponse:
    record = visit.find_record(id, "keys release")
    dead = visit.request.field("owner_is_dead") == "1"
    return act(visit, record, make_release(visit.reason.because, owner_is_dead=dead))


def forget(visit: Visit, id: str) -> ConsoleResponse:
    return act(visit, visit.find_record(id, "keys forget"), make_forget())


def act(visit: Visit, record: Record, action: KeyAction) -> ConsoleResponse:
    check_seen(visit, record)
    done = act_on_record(visit.session, record, action, visit.reason, record.attempt)
    return redirect(visit.request.url(f"/keys/{record.id.hex()}", did=done.audit))


def reveal(visit: Visit, id: str) -> ConsoleResponse:
    """Show the stored bytes as text. The audit row is written before they are shown."""
    record = visit.find_record(id, REVEAL)
    entry = visit.reason.entry(REVEAL, (record.id.hex(),), attempt=record.attempt, bodies=True)
    with visit.session.act(entry):
        answer = record.answer
        revealed = {
            "headers": list(answer.headers) if answer is not None else [],
            "body": show_bytes(answer.body) if answer is not None else "",
            "input": show_bytes(record.input),
            "progress": show_bytes(record.progress),
        }
    return visit.render("record.html", **(gather(visit, record) | {"revealed": revealed}))


def check_seen(visit: Visit, record: Record) -> None:
    """Refuse what was decided on another attempt than the one that the record is in now. When it began is compared,
    too: the key of a record that expired may be claimed anew, and that is a first attempt again."""
    seen = tuple(read_whole(visit, name) for name in ("attempt", "began"))
    if seen != (record.attempt, record.started):
        raise ChangedUnderneath(
            f"{record.key!r} is in attempt {record.attempt} now, which began at {format_time(record.started)}; attempt "
            f"{seen[0]} was shown: it changed underneath. Look at it again before you decide"
        )


def read_whole(visit: Visit, name: str) -> int:
    """A number that the page put into its form."""
    text = visit.request.field(name)
    if not text.isdecimal() or len(text) > 18:
        raise UsageError(f"{name} {text[:40]!r}: load the page again")
    return int(text)


def read_happened(visit: Visit) -> bool:
    outcome = visit.request.field("outcome")
    if outcome not in ("happened", "did-not-happen"):
        raise UsageError(f"outcome {outcome!r}: say whether it happened or did not happen")
    return outcome == "happened"


def read_answer(visit: Visit) -> GivenAnswer:
    """What the form has of an answer. A field with the value that the page put there was not typed."""
    wanted = visit.request.field("with_answer") == "1"
    status = visit.request.field("status", str(DEFAULT_STATUS))
    if not status.isdecimal() or len(status) > 9 or int(status) not in STATUSES:
        raise UsageError(f"status {status[:40]!r}: give a number from 200 to 599")
    content_type = visit.request.field("content_type", DEFAULT_CONTENT_TYPE).strip()
    if not _CONTENT_TYPE.fullmatch(content_type):
        raise UsageError(f"content type {content_type[:80]!r}: give something like {DEFAULT_CONTENT_TYPE}")
    # A form sends line ends as CR LF, which nobody typed.
    body = visit.request.field("answer").replace("\r\n", "\n")
    return GivenAnswer(
        wanted,
        body.encode(),
        None if int(status) == DEFAULT_STATUS else int(status),
        None if content_type == DEFAULT_CONTENT_TYPE else content_type,
    )
