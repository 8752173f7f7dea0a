"""Finding a job by its key as a person writes it: `jobs.result("receipt-7")`.

A task's own key is made of its arguments, framed so that no two calls collide: `receipt-{7}`, where the text "7" is
another job than the number 7. People ask for `receipt-7`. So a key that names no job as it is gets matched against the
declared templates, with plain numbers and texts as their arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from string import Formatter
from typing import Any

from retrysafe.core.keys import Template
from retrysafe.core.ops import Lookup, LookupReply
from retrysafe.core.records import Record
from retrysafe.engine.effects import Flow, FlowPause
from retrysafe.errors import TemplateError, UsageError
from retrysafe.jobs.enqueue_flow import MAX_POLL_SECONDS, POLL_SECONDS, JobState, not_done_error, read_job_state
from retrysafe.jobs.ids import job_id

MAX_CANDIDATE_IDS = 64
"""How many readings of one key are tried. If two fields touch, the text can be split between them in many ways."""
MAX_CUTS = 10_000
"""How many splits are tried for one template. The limit bounds the work for any text a caller may send."""

_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def find_candidate_ids(key: str, templates: Iterable[Template]) -> list[str]:
    """The ids of the jobs that this key may mean. The first is the id of the key as it is."""
    found = dict.fromkeys([job_id(key)])
    for template in templates:
        for values in iter_template_matches(template, key):
            try:
                found.setdefault(job_id(template.fill(values)))
            except TemplateError:
                continue  # a template refuses an empty value
            if len(found) > MAX_CANDIDATE_IDS:
                return list(found)
    return list(found)


def iter_template_matches(template: Template, text: str) -> Iterator[dict[str, Any]]:
    """The arguments with which a template makes this text, up to `MAX_CUTS` attempts."""
    pieces = [(literal, field) for literal, field, _, _ in Formatter().parse(template.text)]
    yield from _iter_matches(pieces, text, {}, iter(range(MAX_CUTS)))


def _iter_matches(
    pieces: list[tuple[str, str | None]], text: str, values: dict[str, Any], steps: Iterator[int]
) -> Iterator[dict[str, Any]]:
    if not pieces:
        if not text:
            yield values
        return
    (literal, field), rest = pieces[0], pieces[1:]
    if not text.startswith(literal):
        return
    text = text[len(literal) :]
    if field is None:
        yield from _iter_matches(rest, text, values, steps)
        return
    for end in _iter_value_ends(text, rest):
        for value in parse_values(text[:end]):
            if next(steps, None) is None:
                return
            if values.get(field, value) == value:
                yield from _iter_matches(rest, text[end:], {**values, field: value}, steps)


def _iter_value_ends(text: str, rest: list[tuple[str, str | None]]) -> Iterable[int]:
    """Where a value at the start of the text may end: before the template's next literal, the longest value first."""
    if not rest:
        return [len(text)] if text else []
    return (end for end in range(len(text), 0, -1) if text.startswith(rest[0][0], end))


def parse_values(text: str) -> list[Any]:
    """The arguments that are written like this: the text itself, and the whole number if it is one."""
    return [int(text), text] if _WHOLE.fullmatch(text) and text != "-0" else [text]


# Looking up -----------------------------------------------------------------------------------------


def lookup_job(ids: list[str], record_id: Callable[[str], bytes], key: str) -> Flow[LookupReply]:
    """What is stored of the job that a key means. Raises UsageError if the key may mean several jobs."""
    first: LookupReply = yield Lookup(record_id(ids[0]))
    if len(ids) == 1 or read_job_state(first.record, first.now) != "absent":
        return first
    found: list[LookupReply] = []
    for id in ids[1:]:
        seen: LookupReply = yield Lookup(record_id(id))
        if read_job_state(seen.record, seen.now) != "absent":
            found.append(seen)
    if len(found) > 1:
        job_ids = ", ".join(repr(seen.record.key) for seen in found if seen.record is not None)
        raise UsageError(f"{key!r} may mean several jobs: ask for one of them by its id, {job_ids}")
    return found[0] if found else first


def wait_for_result(ids: list[str], record_id: Callable[[str], bytes], key: str, wait: float) -> Flow[Record]:
    """The record of the job that a key means, once the job is done. Waits at most `wait` seconds, then raises
    NotDone."""
    waited, pause = 0.0, POLL_SECONDS
    while True:
        seen = yield from lookup_job(ids, record_id, key)
        state: JobState = read_job_state(seen.record, seen.now)
        if state == "done":
            assert seen.record is not None, "a job that is done has a record"
            return seen.record
        if state == "unknown" or waited >= wait:
            raise not_done_error(key, state, seen.record)
        pause = min(pause, max(wait - waited, 0.0))
        slept = yield FlowPause(record_id(ids[0]), pause)
        waited += pause if slept is None else slept
        pause = min(pause * 2, MAX_POLL_SECONDS)
