"""The trace of the first run, behind the arguments of an operation or in their place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.core.records import Record
from retrysafe.core.trace_context import SpanIds, encode_traceparent, read_span, read_traceparent
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import claim

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def record_with(input_: bytes) -> Record:
    record = MemoryStore().execute(claim("k", now=1)).record
    assert record is not None
    return record._replace(input=input_)


@given(
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.integers(0, 255),
    st.sampled_from([b"", b'{"a":1}', b"[]"]),
)
def test_every_trace_comes_back(trace_id: int, span_id: int, flags: int, arguments: bytes) -> None:
    text = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
    stored = encode_traceparent(text, arguments)
    assert read_traceparent(record_with(stored)) == text
    assert read_span(text) == SpanIds(trace_id, span_id, flags)
    if arguments:
        assert json.loads(stored) == json.loads(arguments), "a release that knows nothing of it reads the same"


@pytest.mark.parametrize(
    "text",
    ["", "00-x", TRACE.upper(), TRACE + "-more", TRACE.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), "é"],
)
def test_what_is_no_traceparent_is_not_kept(text: str) -> None:
    assert encode_traceparent(text, b"[1]") == b"[1]"
    assert encode_traceparent(text) == b""
    assert read_span(text) is None


@pytest.mark.parametrize("input_", [b"", b"{}", b'{"a": 1}', b" " * 200, b"{}" + b" " * 104])
def test_arguments_are_not_taken_for_a_trace(input_: bytes) -> None:
    assert read_traceparent(record_with(input_)) == ""
