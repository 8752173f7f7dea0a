"""A body too large to be remembered: the bytes that were read and the rest are one file to the application."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.web.wsgi_body import ChainedStream, WsgiBody

LINES = st.binary(max_size=12).map(lambda data: data.replace(b"\x00", b"\n"))
CALLS = st.lists(st.tuples(st.sampled_from(["read", "readline"]), st.integers(-1, 9)), max_size=12)


@given(head=LINES, rest=LINES, calls=CALLS)
def test_the_two_parts_read_like_one_file(head: bytes, rest: bytes, calls: list[tuple[str, int]]) -> None:
    chained, whole = ChainedStream(head, io.BytesIO(rest)), io.BytesIO(head + rest)
    for name, size in calls:
        assert getattr(chained, name)(size) == getattr(whole, name)(size)
    assert chained.readlines() == whole.readlines()


@pytest.mark.parametrize("size", [1, 4, 5, 6, 8])
def test_a_line_across_both_parts_is_never_longer_than_asked(size: int) -> None:
    assert ChainedStream(b"abcd", io.BytesIO(b"efgh\nij")).readline(size) == b"abcdefgh\n"[:size]


def test_wsgi_input_beyond_the_limit_keeps_to_the_size_of_a_line() -> None:
    environ: dict[str, Any] = {"wsgi.input": io.BytesIO(b"abcdefgh\nij"), "wsgi.input_terminated": True}
    body = WsgiBody(environ, limit=3)
    assert [body.readline(6), body.readline(6), body.readline(6)] == [b"abcdef", b"gh\n", b"ij"]


def test_djangos_body_beyond_the_limit_keeps_to_the_size_of_a_line() -> None:
    pytest.importorskip("django")
    from retrysafe.web.django.convert import read_remembered_body

    class Request:
        _read_started = False
        _stream: Any = io.BytesIO(b"abcdefgh\nij")

    request = Request()
    assert read_remembered_body(request, limit=3) == b"abcd"
    assert [request._stream.readline(6) for _ in range(3)] == [b"abcdef", b"gh\n", b"ij"]
