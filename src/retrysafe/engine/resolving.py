"""Manual resolution: a person decides how an uncertain attempt ended.

The decision is a fenced operation: it counts only for the attempt that the person looked at. If the owner comes back,
or a second person or a worker decides at the same time, one of them wins and the others get NotUncertain.
"""

from __future__ import annotations

import json

from retrysafe.core.keys import Key
from retrysafe.core.moves import is_outcome_unknown
from retrysafe.core.ops import Lookup, Resolve
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.core.times import format_time
from retrysafe.engine.codecs import RETURNED_STATUS, encode_given_result
from retrysafe.engine.effects import Flow
from retrysafe.engine.events import Events
from retrysafe.errors import NotUncertain, UsageError

WITHOUT_ANSWER = Answer(200, b"", gone="forgotten")
"""For work that happened and whose answer nobody has. A retry gets AnswerGone and does not run."""


def parse_record_id(which: Key | str | bytes, namespace: str) -> bytes:
    """The id of a record, from a Key, from 32 bytes or from 64 hex digits."""
    if isinstance(which, Key):
        return which.id(namespace)
    try:
        found = which if isinstance(which, bytes) else bytes.fromhex(which)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise UsageError(
            f"{which!r} is neither a Key nor a record's id (64 hex digits, as `retrysafe keys list` shows)"
        )
    return found


RESULT_KINDS = frozenset({"function", "job", "tool"})
"""The kinds of records whose answer is what a function returned, as its codec stores it."""


def check_answer(answer: Answer) -> Answer:
    """A person's answer, if a server can send it. It is stored once and for all, so a mistyped one is refused here."""
    if not 200 <= answer.status <= 599:
        raise UsageError(f"status {answer.status}: an answer that can be replayed has a status from 200 to 599")
    for name, value in answer.headers:
        if not (name and name.isascii() and name.isprintable() and value.isascii() and value.isprintable()):
            raise UsageError(f"header {name!r} with the value {value!r}: give printable ASCII characters only")
    return answer


def _read_media_type(answer: Answer) -> str:
    found = next((value for name, value in answer.headers if name.lower() == "content-type"), "")
    return found.partition(";")[0].strip().lower()


def check_json(answer: Answer, media_type: str) -> Answer:
    """The answer, if its body is JSON where its content type says so. A client could not read anything else."""
    if not (media_type == "application/json" or media_type.endswith("+json")):
        return answer
    try:
        json.loads(answer.body.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise UsageError(
            f"the content type is {media_type}, and the body ({len(answer.body):,} bytes) is no JSON: {why}. Correct "
            "it, or give its own content type; what is stored cannot be corrected later"
        ) from error
    return answer


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no value of JSON")


def convert_to_result(record: Record, answer: Answer) -> Answer:
    """A person's answer as the retry reads it. For a function, JSON becomes the form of a stored result. An answer of
    another content type stays as it is: a codec of the user's own may read it."""
    check_answer(answer)
    media_type = _read_media_type(answer)
    if record.kind not in RESULT_KINDS or answer.gone or media_type not in ("", "application/json"):
        return check_json(answer, media_type)
    what = f"{record.key!r} is the key of a {record.kind}: its answer is what it returned"
    if answer.status != RETURNED_STATUS:
        raise UsageError(f"{what}, which has no status; {answer.status} was given: leave it out")
    try:
        return encode_given_result(answer.body)
    except ValueError as error:
        raise UsageError(
            f'{what}, as JSON, like "ch_7" (with the quotes) or {{"id": "ch_7"}} for a value with fields; {error}. '
            "Leave the answer out if nobody has it"
        ) from error


def advise_on_settled(record: Record, now: int, attempt: int | None) -> str:
    """Why there is nothing to resolve, and which command fits instead, as far as the record shows it."""
    if attempt not in (None, record.attempt):
        return f"attempt {attempt} was asked for. Look at it again before you decide"
    go_on = f"`retrysafe operations resume MODULE:SAFE {record.id.hex()[:16]} --id --because TEXT`"
    undo = "`operations undo` undoes it"
    versioned = record.kind == "operation" or "@" in record.target
    if record.state is State.COMPLETED:
        return "it is finished, and a retry gets its answer"
    if record.state is State.RELEASED:
        return (
            f"{go_on} goes on with it now, {undo}" if versioned else "its outcome is known, and the next retry runs it"
        )
    if not record.lapsed(now):
        return f"its owner is at work, and its lease lasts until {format_time(record.lease_until)}. Look again then"
    if versioned:
        return f"its owner went silent, and it goes on where it stopped: {go_on} does so now, {undo}"
    return "its owner went silent, and the next retry runs it"


def resolve_uncertain(
    record_id: bytes,
    *,
    happened: bool,
    answer: Answer | None,
    because: str,
    namespace: str | None = None,
    attempt: int | None = None,
    events: Events | None = None,
) -> Flow[Record]:
    """Resolve the record, and return it as it is then. Raises NotUncertain if there is nothing to decide any more."""
    events = events or Events()
    if not isinstance(because, str) or (not happened and not because.strip()):
        raise UsageError("say because=...: what showed that it did not happen; whoever looks later will ask")
    if not happened and answer is not None:
        raise UsageError("what did not happen has no answer: give happened=True, or leave the answer out")
    seen = yield Lookup(record_id)
    record = seen.record
    if record is None or (namespace is not None and record.namespace != namespace):
        where = "" if namespace is None else f" in namespace {namespace!r}"
        raise UsageError(f"there is no record {record_id.hex()!r}{where}; `retrysafe keys list` shows what there is")
    if not is_outcome_unknown(record, seen.now) or attempt not in (None, record.attempt):
        events.figures.count("actions", ("resolve", "refused"))
        advice = advise_on_settled(record, seen.now, attempt)
        raise NotUncertain(record.key, record.state.value, record.attempt, record.note, advice)
    resolved_answer = convert_to_result(record, answer or WITHOUT_ANSWER) if happened else None
    if not (yield Resolve(record.id, record.fence, resolved_answer, because)):
        found = (yield Lookup(record_id)).record
        events.figures.count("actions", ("resolve", "refused"))
        current = found if found is not None else record._replace(state=State.RELEASED, note="it is gone")
        raise NotUncertain(current.key, current.state.value, current.attempt, current.note)
    events.emit("resolved", record.id, record.target, (record.kind, ""))
    events.figures.count("actions", ("resolve", "done"))
    after: Record | None = (yield Lookup(record_id)).record
    return record if after is None else after
