"""Bodies and headers: the replay is the same as the first answer."""

from __future__ import annotations

import gzip
import random

import pytest

from tests.web.apps.reference import CAP
from tests.web.conformance.targets import Target, new_key
from tests.web.conformance.test_table import is_problem

RAW = {"Content-Type": "application/octet-stream"}
BODIES = {
    "empty": b"",
    "one NUL": b"\0",
    "random bytes": random.Random(7).randbytes(5000),
    "not UTF-8": b"\xff\xfe\x80",
    "CR LF": b"\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "1 MiB - 1": random.Random(8).randbytes(CAP - 1),
    "1 MiB": random.Random(9).randbytes(CAP),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_any_bytes_go_in_and_come_back(target: Target, body: bytes) -> None:
    key = new_key()
    first, again = (target.post("/echo-bytes", key, content=body, headers=RAW) for _ in range(2))
    assert first.status_code == again.status_code == 200
    assert first.content == again.content == body
    assert first.headers["x-nonce"] == again.headers["x-nonce"]
    assert target.executions(key) == 1


@pytest.mark.parametrize("path", ["/stream", "/gzip", "/no-content", "/not-modified", "/declined", "/unavailable"])
def test_kinds_of_answers_are_replayed(target: Target, path: str) -> None:
    """Bugs of similar packages: answers in several chunks, 204, with a charset or another status are stored like
    any."""
    key = new_key()
    with target.http.stream("POST", path, headers=target.headers(key), content=b"{}") as told:
        first_status, first_headers, first = told.status_code, told.headers, b"".join(told.iter_raw())
    with target.http.stream("POST", path, headers=target.headers(key), content=b"{}") as told:
        again_status, again_headers, again = told.status_code, told.headers, b"".join(told.iter_raw())
    assert (first_status, first) == (again_status, again)
    for name in ("content-type", "content-encoding", "etag"):
        assert first_headers.get(name) == again_headers.get(name)
    assert again_headers["idempotent-replayed"] == "true"
    assert target.executions(key) == 1
    if path == "/gzip":
        assert len(gzip.decompress(again)) == 4000
    if path == "/stream":
        assert again.count(b"\n") == 100


def test_a_large_answer_under_the_cap_is_whole(target: Target) -> None:
    """A bug of a similar package: generators over 1 MiB were cut off."""
    key = new_key()
    first, again = (target.post(f"/big?size={CAP - 1}", key) for _ in range(2))
    assert len(first.content) == CAP - 1
    assert first.content == again.content
    assert target.executions(key) == 1


@pytest.mark.parametrize("size", [CAP + 1, 3 * CAP])
def test_s8_above_the_cap_a_tombstone_is_left(target: Target, size: int) -> None:
    key = new_key()
    first, again = (target.post(f"/big?size={size}", key) for _ in range(2))
    assert first.status_code == 200
    assert len(first.content) == size
    assert is_problem(again, 410, "answer-gone")
    assert again.json()["safe_new_key"] is False
    assert target.executions(key) == 1


def test_server_sent_events_pass_by_and_leave_a_tombstone(target: Target) -> None:
    key = new_key()
    first, again = (target.post("/sse", key) for _ in range(2))
    assert first.text.count("data: ") == 3
    assert is_problem(again, 410, "answer-gone")
    assert target.executions(key) == 1


@pytest.mark.parametrize("declared", [True, False], ids=["with length", "chunked"])
def test_s8_a_body_above_the_cap_is_refused_before_anything(target: Target, declared: bool) -> None:
    if not declared and not target.launch.chunked:
        return  # this server takes no such bodies
    key = new_key()
    body = bytes(CAP + 1)
    told = target.post("/echo-bytes", key, content=body if declared else iter([body]), headers=RAW)
    assert is_problem(told, 413, "too-large")
    assert target.executions(key) == 0
    assert target.post("/echo-bytes", key, content=b"small", headers=RAW).status_code == 200, "no lease was left"


def test_a_chunked_request_is_the_same_request(target: Target) -> None:
    if not target.launch.chunked:
        return
    key = new_key()
    first = target.post("/echo-bytes", key, content=iter([b"ab", b"c"]), headers=RAW)
    again = target.post("/echo-bytes", key, content=b"abc", headers=RAW)
    assert first.content == again.content == b"abc"
    assert target.executions(key) == 1


def test_s9_the_first_answer_has_all_its_headers_and_the_replay_what_is_kept(target: Target) -> None:
    key = new_key()
    first, again = (target.post("/payments", key) for _ in range(2))
    assert first.headers.get_list("set-cookie") == ["session=s1; HttpOnly", "theme=dark"]
    for name in ("www-authenticate", "x-request-id", "x-ratelimit-remaining", "traceparent"):
        assert name in first.headers
        assert name not in again.headers
    assert "set-cookie" not in again.headers
    for name in ("location", "etag", "x-custom", "content-type", "content-length"):
        assert again.headers[name] == first.headers[name]
    assert again.headers.get_list("link") == first.headers.get_list("link") == ['</a>; rel="a"', '</b>; rel="b"']
    assert first.headers["cache-control"] == "max-age=60"


def test_s10_a_replay_is_not_cached(target: Target) -> None:
    key = new_key()
    target.post("/payments", key)
    assert target.post("/payments", key).headers.get_list("cache-control") == ["no-store"]


def test_s24_a_compressed_request_is_not_inflated(target: Target) -> None:
    """A decompression bomb: 10 MB of zeros in 10 kB. The compressed bytes are fingerprinted."""
    key = new_key()
    bomb = gzip.compress(bytes(10_000_000))
    headers = {**RAW, "Content-Encoding": "gzip"}
    first, again = (target.post("/declined", key, content=bomb, headers=headers) for _ in range(2))
    assert first.content == again.content
    assert target.executions(key) == 1


def test_a_keyless_answer_is_the_applications_own(target: Target) -> None:
    told = target.post("/optional")
    assert told.status_code == 201
    assert not {"idempotency-key", "idempotent-replayed"} & set(told.headers)
