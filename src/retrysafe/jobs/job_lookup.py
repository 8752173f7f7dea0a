"""Asking for a job by the key one would write down: `jobs.result("receipt-7")`.

A task's own key is made of its arguments, framed so that no two calls collide: `receipt-{7}`, and text is another job
than a number. People ask for `receipt-7`. So a key that is nobody's as it stands is read as what the declared templates
could have made of plain numbers and texts.
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
"""Readings of one key that are tried. Fields that touch can be read in as many ways as a text can be cut."""
MAX_CUTS = 10_000
"""Cuts that are tried for one template: the text may be anybody's."""

_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def find_candidate_ids(key: str, templates: Iterable[Template]) -> list[str]:
    """The ids of the jobs that somebody who writes this key may mean; first the one that has it as it stands."""
    found = dict.fromkeys([job_id(key)])
    for template in templates:
        for values in iter_template_matches(template, key):
            try:
                found.setdefault(job_id(template.fill(values)))
            except TemplateError:
                continue  # an empty value makes no key
            if len(found) > MAX_CANDIDATE_IDS:
                return list(found)
    return list(found)


def iter_template_matches(template: Template, text: str) -> Iterator[dict[str, Any]]:
    """The arguments with which a template may stand for a text, as far as `STEPS` go."""
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
    """Where a value at the beginning of a text may end: before what the template says next, the longest first."""
    if not rest:
        return [len(text)] if text else []
    return (end for end in range(len(text), 0, -1) if text.startswith(rest[0][0], end))


def parse_values(text: str) -> list[Any]:
    """What an argument may have been that is written like this: the text, or a whole number."""
    return [int(text), text] if _WHOLE.fullmatch(text) and text != "-0" else [text]


# Asking ---------------------------------------------------------------------------------------------


def lookup_job(ids: list[str], record_id: Callable[[str], bytes], key: str) -> Flow[LookupReply]:
    """What is stored of the job that a key means. Raises UsageError where it means several."""
    first: LookupReply = yield Lookup(record_id(ids[0]))
    if len(ids) == 1 or read_job_state(first.record, first.now) != "absent":
        return first
    found: list[LookupReply] = []
    for id in ids[1:]:
        seen: LookupReply = yield Lookup(record_id(id))
        if read_job_state(seen.record, seen.now) != "absent":
            found.append(seen)
    if len(found) > 1:
        told = ", ".join(repr(seen.record.key) for seen in found if seen.record is not None)
        raise UsageError(f"{key!r} may mean several jobs: ask for one of them by its id, {told}")
    return found[0] if found else first


def wait_for_result(ids: list[str], record_id: Callable[[str], bytes], key: str, wait: float) -> Flow[Record]:
    """The record of the job that a key means, once it is done; wait for it for at most `wait` seconds."""
    waited, pause = 0.0, POLL_SECONDS
    while True:
        seen = yield from lookup_job(ids, record_id, key)
        state: JobState = read_job_state(seen.record, seen.now)
        if state == "done":
            assert seen.record is not None, "what is done is there"
            return seen.record
        if state == "unknown" or waited >= wait:
            raise not_done_error(key, state, seen.record)
        pause = min(pause, max(wait - waited, 0.0))
        slept = yield FlowPause(record_id(ids[0]), pause)
        waited += pause if slept is None else slept
        pause = min(pause * 2, MAX_POLL_SECONDS)
