"""Keys in headers: S5, and the modes of a rollout."""

from __future__ import annotations

import pytest

from tests.web.conformance.targets import ALICE, Target, new_key
from tests.web.conformance.test_table import is_problem

MALFORMED = {
    "empty": b"",
    "blank": b"   ",
    "comma": b"one,two",
    "two strings": b'"one","two"',
    "string and more": b'"one" two',
    "open quote": b'"one',
    "empty string": b'""',
    "space inside": b'"one two"',
    "too long": b"k" * 256,
    "not ascii": "schlüssel".encode(),
    "high byte": b"k\xff",
    "inner space": b"one two",
    "parameter": b'"one";p=1',
    "bad escape": b'"on\\e"',
}


def request(*lines: bytes, tag: str) -> bytes:
    head = [
        b"POST /payments HTTP/1.1", b"Host: x", b"Connection: close", b"Content-Type: application/json",
        b"Content-Length: 2", f"Authorization: Bearer {ALICE}".encode(), f"X-Tag: {tag}".encode(), *lines,
    ]  # fmt: skip
    return b"\r\n".join([*head, b"", b"{}"])


@pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED)
def test_s5_a_malformed_key_is_refused_and_nothing_runs(target: Target, value: bytes) -> None:
    tag = new_key()
    told = target.raw(request(b"Idempotency-Key: " + value, tag=tag))
    assert told.split(b" ", 2)[1] == b"400", told
    # A server may refuse the line before we see it, with a 400 of its own, which is fine.
    assert b"/problems/malformed-key/" in told or b"problem+json" not in told
    assert target.executions(tag) == 0


def test_s5_two_header_lines_are_refused(target: Target) -> None:
    tag = new_key()
    for second in (b"k-two", b"k-one"):
        told = target.raw(request(b"Idempotency-Key: k-one", b"Idempotency-Key: " + second, tag=tag))
        assert told.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), told
        assert b"/problems/malformed-key/" in told
    assert target.executions(tag) == 0


def test_s5_quoted_and_bare_are_one_key(target: Target) -> None:
    key = new_key()
    first = target.post("/payments", key, tag=key)
    quoted = target.post("/payments", f'"{key}"', tag=key)
    padded = target.raw(request(b"Idempotency-Key: \t " + key.encode() + b" \t", tag=key))
    assert quoted.content == first.content
    assert quoted.headers["idempotent-replayed"] == "true"
    assert b" 422 " in padded.split(b"\r\n")[0] + b" ", "the same key, another body"
    assert target.executions(key) == 1


def test_the_longest_key_works(target: Target) -> None:
    tag = new_key()
    key = tag.ljust(255, "~")
    first, again = (target.post("/payments", key, tag=tag) for _ in range(2))
    assert first.content == again.content
    assert target.executions(tag) == 1


def test_a_key_may_look_like_anything(target: Target) -> None:
    """S16, S17: the text of a key is never part of a statement, a pattern or a name."""
    tag = new_key()
    for text in ("';DROP-TABLE-keys;--", "{tag}", "*", '{"$ne":1}', "../../etc/passwd", "%00", "\\r\\n"):
        quoted = '"' + (text + tag).replace("\\", "\\\\").replace('"', '\\"') + '"'
        first, again = (target.post("/payments", quoted, tag=tag) for _ in range(2))
        assert first.status_code == 201, first.text
        assert first.content == again.content
    assert target.executions(tag) == 7


def test_a_missing_key_is_refused_where_it_is_required(target: Target) -> None:
    tag = new_key()
    assert is_problem(target.post("/payments", tag=tag), 400, "missing-key")
    assert target.executions(tag) == 0


def lower_case(key: str | None, tag: str) -> bytes:
    lines = [] if key is None else [f"Idempotency-Key: {key}".encode()]
    return request(*lines, tag=tag).replace(b"POST /payments", b"patch /items/7", 1)


def test_a_lower_case_method_is_protected_or_refused_and_never_goes_past(target: Target) -> None:
    """`fetch` sends `patch` as it is written. Some frameworks run it as PATCH, some answer 405."""
    key, tag = new_key(), new_key()
    told = [target.raw(lower_case(key, key)) for _ in range(2)]
    missing = target.raw(lower_case(None, tag))
    codes = {int(one.split(b" ", 2)[1]) for one in told}
    assert target.executions(key) == (1 if codes == {204} else 0), told
    assert codes == {204} or codes <= {400, 404, 405, 501}, told
    assert target.executions(tag) == 0
    assert 400 <= int(missing.split(b" ", 2)[1]) < 502, missing


def on_path(path: bytes, key: str) -> bytes:
    whole = request(f"Idempotency-Key: {key}".encode(), tag=key)
    return whole.replace(b"POST /payments", b"PUT " + path, 1)


def status(told: bytes) -> int:
    return int(told.split(b" ", 2)[1])


def test_control_characters_in_a_path_reach_neither_the_store_nor_the_log(target: Target) -> None:
    """PostgreSQL refuses NUL in a text; a line break in a target would forge a line of the log."""
    key = new_key()
    told = [target.raw(on_path(b"/items/a%00b%0AERROR%20forged", key)) for _ in range(2)]
    assert {status(one) for one in told} <= {200, 400, 404, 405}, told
    assert target.executions(key) == (1 if status(told[0]) == 200 else 0)
    assert not [line for line in target.log().splitlines() if line.startswith("ERROR forged")]


def test_paths_that_are_not_the_same_are_not_one_request(target: Target) -> None:
    key = new_key()
    first, second = (target.raw(on_path(path, key)) for path in (b"/items/caf%E9", b"/items/caf%E8"))
    if status(first) == 200:
        assert status(second) == 422, second
        assert target.executions(key) == 1
    else:
        assert target.executions(key) == 0, "what no route takes may say so in any way"


def test_optional_runs_without_a_key_and_protects_with_one(target: Target) -> None:
    tag, key = new_key(), new_key()
    assert [target.post("/optional", tag=tag).status_code for _ in range(2)] == [201, 201]
    assert target.executions(tag) == 2
    assert target.post("/optional", key).content == target.post("/optional", key).content
    assert target.executions(key) == 1
    assert target.post("/optional", "", tag=key).status_code == 400, "an empty key is not no key"


def test_observe_refuses_nothing(target: Target) -> None:
    key = new_key()
    told = [target.post("/observed", key) for _ in range(2)]
    told += [target.post("/observed", key, content=b"{}"), target.post("/observed", "a, b", tag=key)]
    assert [one.status_code for one in told] == [201] * 4
    assert len({one.content for one in told}) == 4
    assert target.executions(key) == 4


def test_generate_mints_a_key_that_works(target: Target) -> None:
    tag = new_key()
    first = target.post("/generated", tag=tag)
    minted = first.headers["idempotency-key"]
    again = target.post("/generated", minted, tag=tag)
    assert first.status_code == 201
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert target.executions(tag) == 1
