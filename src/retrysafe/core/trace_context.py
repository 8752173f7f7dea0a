"""The trace of the run that made an answer, kept with the record. A replay can then point at that run.

It is stored in `Record.input`, where operations keep their arguments. A guard has none, so the place is free: no store
needs a new column, and the release before, which does not know of it, does not read it. Arguments are JSON, and no JSON
text has the form of a `traceparent`, so one is never taken for the other. Like all input it is encrypted if there is a
key ring, and erased by Forget.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from retrysafe.core.records import Record

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""https://www.w3.org/TR/trace-context/#traceparent-header, without what later versions may append."""


def encode_traceparent(text: str) -> bytes:
    """The input of a claim. Empty if the text is no traceparent."""
    found = text.encode("ascii", "replace")
    return found if _TRACEPARENT.fullmatch(found) else b""


def read_traceparent(record: Record) -> str:
    """The `traceparent` of the first run of this record; empty if none was kept."""
    return record.input.decode("ascii") if _TRACEPARENT.fullmatch(record.input) else ""


class SpanIds(NamedTuple):
    """What a traceparent says."""

    trace_id: int
    span_id: int
    flags: int


def read_span(traceparent: str) -> SpanIds | None:
    if not _TRACEPARENT.fullmatch(traceparent.encode("ascii", "replace")):
        return None
    _, trace_id, span_id, flags = traceparent.split("-")
    return SpanIds(int(trace_id, 16), int(span_id, 16), int(flags, 16))
