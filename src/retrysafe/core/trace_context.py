"""The trace of the run that made an answer, kept with the record. A replay can then point at that run.

It is stored in `Record.input`, so no store needs a new column. A guard has no input, and the place is free. An
operation keeps its arguments there, as JSON: the trace is written behind them as white space, two bits a character.
JSON allows white space at the end, so the release before, which knows nothing of it, reads the same arguments (rule 17,
tests/releases/test_traced.py). Arguments are written without white space, and no JSON text has the form of a
`traceparent`, so one is never taken for the other. Like all input it is encrypted if there is a key ring, and erased by
Forget.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from retrysafe.core.records import Record

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""https://www.w3.org/TR/trace-context/#traceparent-header, without what later versions may append."""


_BLANKS = b" \t\n\r"
"""What JSON calls white space: the digits of a number to the base of four."""
_RAW_BYTES = 1 + 16 + 8 + 1
_BLANK_CHARS = _RAW_BYTES * 4
_TO_DIGITS = bytes.maketrans(_BLANKS, b"0123")
_TO_BLANKS = bytes.maketrans(b"0123", _BLANKS)


def encode_traceparent(text: str, arguments: bytes = b"") -> bytes:
    """The input of a claim: the arguments and the trace. Only the arguments if the text is no traceparent."""
    found = text.encode("ascii", "replace")
    if not _TRACEPARENT.fullmatch(found):
        return arguments
    return arguments + _encode_blanks(found) if arguments else found


def read_traceparent(record: Record) -> str:
    """The `traceparent` of the first run of this record; empty if none was kept."""
    found = record.input
    tail = found[-_BLANK_CHARS:]
    if len(found) > _BLANK_CHARS and not tail.strip(_BLANKS):
        found = _decode_blanks(tail)
    return found.decode("ascii") if _TRACEPARENT.fullmatch(found) else ""


def _encode_blanks(traceparent: bytes) -> bytes:
    number = int(traceparent.replace(b"-", b""), 16)
    digits = bytearray()
    for _ in range(_BLANK_CHARS):
        number, digit = divmod(number, 4)
        digits += b"%d" % digit
    return bytes(reversed(digits)).translate(_TO_BLANKS)


def _decode_blanks(tail: bytes) -> bytes:
    text = f"{int(tail.translate(_TO_DIGITS), 4):0{2 * _RAW_BYTES}x}"
    return f"{text[:2]}-{text[2:34]}-{text[34:50]}-{text[50:]}".encode("ascii")


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
