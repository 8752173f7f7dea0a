"""Fingerprints: what means the same agrees, what may not mean the same does not, and nothing ever fails."""

from __future__ import annotations

import hashlib
import json
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.core import fingerprint
from retrysafe.core.fingerprint import (
    CANONICAL_LIMIT_BYTES,
    fingerprint_body,
    fingerprint_http,
    fingerprint_text,
    media_type,
)
from retrysafe.core.keys import frame
from retrysafe.core.records import Fingerprint

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


def of(body: bytes | str, content_type: str = JSON) -> Fingerprint:
    return fingerprint_body(content_type, [body.encode() if isinstance(body, str) else body])


# JSON --------------------------------------------------------------------------------------------

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(PLAIN)
def test_the_encoder_that_is_made_once_writes_what_json_writes(value: Any) -> None:
    assert "".join(fingerprint._write(value, 0)) == json.dumps(value, sort_keys=True, separators=(",", ":"))


def test_without_the_encoder_in_c_the_plain_one_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    value = {"b": [1], "a": "é"}
    assert "".join(fingerprint._build_writer()(value, 0)) == "".join(fingerprint._write(value, 0))


@given(st.text(max_size=600), st.text(max_size=20))
def test_a_remembered_head_is_the_head(path: str, query: str) -> None:
    head = frame("POST", path, query, JSON, "json1", fingerprint_body(JSON, [b"{}"]).digest)
    for _ in range(2):
        assert fingerprint_http("post", path, query, JSON, [b"{}"]).digest == hashlib.sha256(head).digest()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}'),
        ('{"a":1}', ' {\n\t"a" : 1 }\r\n'),
        ('"\\u00e9"', '"é"'),
        ('"\\/"', '"/"'),
        ('"\\ud83d\\ude00"', '"😀"'),
        ('{"a":{"c":[1,{"x":1,"y":2}],"b":2}}', '{"a":{"b":2,"c":[1,{"y":2,"x":1}]}}'),
        ('{"a":1,"b":2,"a":3}', '{"b":2,"a":1,"a":3}'),
        ("\n1", "1"),
    ],
)
def test_spellings_of_the_same_json_agree(one: str, two: str) -> None:
    assert of(one) == of(two)
    assert of(one).algorithm == "json1"


DIFFERENT = [
    "1", "1.0", "1.00", "1e0", "10e-1", "true", '"1"', "[1]", "{}", "[]", "null", '""', "0", "-0", "0.0", "-0.0",
    str(2**53), str(2**53 + 1), str(2**64), str(2**64 + 1), "1e400", "1e401", "0.1", "0.10000000000000001",
    '{"a":1}', '{"a":2}', '{"a":1,"a":2}', '{"a":2,"a":1}', '{"a":2,"a":2}', '{"a":[1,2]}', '{"a":[2,1]}',
    '{"\\u0000n":"1.0"}', '{"\\u0000d":[["a",1],["a",2]]}', '{"\\u0000\\u0000n":"1.0"}', '["\\u0000n","1.0"]',
    '"\\ud800"', '"\\udc00"', '"\\\\ud800"', '"é"', '"e\u0301"', '"a"', '"A"', '"a "', '{"a":null}', '{"a":""}',
]  # fmt: skip


def test_json_that_may_mean_something_else_differs() -> None:
    assert [pair for pair in combinations(DIFFERENT, 2) if of(pair[0]) == of(pair[1])] == []


@pytest.mark.parametrize("body", DIFFERENT)
def test_all_of_it_is_json(body: str) -> None:
    assert of(body).algorithm == "json1"


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"{", b"{'a':1}", b'{"a":1,}', b"NaN", b"[Infinity]", b"-Infinity", b'{"a":NaN}', b"1 2", b"\xff",
        b'\xef\xbb\xbf{"a":1}', '{"a":1}'.encode("utf-16"), b'"\xed\xa0\x80"', b'"tab\there"', b"[" * 60_000,
        b'{"a":' * 12_000, b"[" * 30_000 + b"]" * 30_000, b"1" * 5_000, b"-" + b"1" * 5_000, b"01", b"+1", b"\0",
    ],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_what_is_not_strict_json_is_hashed_as_it_came(body: bytes) -> None:
    found = of(body)
    assert found.algorithm == "raw1"
    assert found.length == len(body)
    assert found.digest == of(body, "text/plain").digest


@pytest.mark.parametrize(
    "content_type",
    [
        JSON,
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;profile="x"',
        " application/json ",
        "application/vnd.api+json",
        "application/merge-patch+json; charset=utf-8",
    ],
)
def test_every_json_type_is_read_as_json(content_type: str) -> None:
    assert of('{"b":1, "a":2}', content_type) == of('{"a":2,"b":1}', content_type)


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/jsonp", "application/x-json", "json"])
def test_other_types_are_raw(content_type: str) -> None:
    assert of('{"a": 1}', content_type).algorithm == "raw1"
    assert of('{"a": 1}', content_type) != of('{"a":1}', content_type)


# Forms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("a=1&b=2", "b=2&a=1"),
        ("a=1&b=2&a=3", "b=2&a=1&a=3"),
        ("a=x+y", "a=x%20y"),
        ("a=%7E", "a=~"),
        ("a=%e2%82%ac", "a=%E2%82%AC"),
        ("a=&b=", "b=&a="),
    ],
)
def test_forms_that_agree(one: str, two: str) -> None:
    assert of(one, FORM) == of(two, FORM)
    assert of(one, FORM).algorithm == "form1"


FORMS = [
    "a=1&a=2", "a=2&a=1", "a=1", "a=", "a=1&b=", "b=1", "a=12", "a=1%262", "a%3D1=", "a=%FF", "a=%ED%B3%BF", "a=%00",
    "a=1&b=2", "a=1b=2", "A=1", "a=%C3%A9", "a=e%CC%81",
]  # fmt: skip


def test_forms_that_differ() -> None:
    """The order of the same field may mean something, a blank value is a value."""
    assert [pair for pair in combinations(FORMS, 2) if of(pair[0], FORM) == of(pair[1], FORM)] == []


@pytest.mark.parametrize("body", [b"a", b"a&b=1", b"a=1&&b=2", b"\xff=1", "ä=1".encode(), b"&".join([b"a=1"] * 10_001)])
def test_what_is_no_form_is_raw(body: bytes) -> None:
    assert of(body, FORM).algorithm == "raw1"


# Multipart ---------------------------------------------------------------------------------------


def multipart(boundary: str, *contents: bytes, head: bytes = b'Content-Disposition: form-data; name="f"') -> bytes:
    line = b"--" + boundary.encode()
    parts = b"".join(line + b"\r\n" + head + b"\r\n\r\n" + content + b"\r\n" for content in contents)
    return parts + line + b"--\r\n"


def of_parts(boundary: str, body: bytes) -> Fingerprint:
    return of(body, f"multipart/form-data; boundary={boundary}")


def test_the_boundary_does_not_matter() -> None:
    one, two = of_parts("abc", multipart("abc", b"x", b"\0\xff")), of_parts("xyz9", multipart("xyz9", b"x", b"\0\xff"))
    assert one == two
    assert one.algorithm == "multipart1"
    assert of(multipart("a b", b"x"), 'multipart/form-data; boundary="a b"') == of_parts("c", multipart("c", b"x"))


PARTS = [
    multipart("b", b"x"),
    multipart("b", b"y"),
    multipart("b", b"x", b""),
    multipart("b", b"", b"x"),
    multipart("b"),
    multipart("b", b"x\r\n"),
    multipart("b", b"x", head=b'Content-Disposition: form-data; name="g"'),
    multipart("b", b"x", b"y"),
    multipart("b", b"y", b"x"),
    multipart("b", b"x\r\n--b2\r\n\r\ny"),
    multipart("b", b"x", head=b"2"),
    multipart("b", b"x", head=b"A: 1\r\n b\r\nC: 2"),
    multipart("b", b"x", head=b"A: 1\r\nC: 2\r\n b"),
    multipart("b", b"x", head=b"A: 1\nB: 2"),
    multipart("b", b"x", head=b"A: 1\r\nB: 2"),
]


def test_other_parts_differ() -> None:
    assert [pair for pair in combinations(PARTS, 2) if of_parts("b", pair[0]) == of_parts("b", pair[1])] == []


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", multipart("b", b"x")),
        ("multipart/form-data; boundary=", multipart("b", b"x")),
        ("multipart/form-data; boundary=c", multipart("b", b"x")),
        ("multipart/form-data; boundary=b", multipart("b", b"x")[:-4]),
        ("multipart/form-data; boundary=b", b"--b\r\nno header end\r\n--b--\r\n"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n--b--\r\n\r\n\r\ny\r\n--b--"),
        ("multipart/form-data; boundary=\u20ac", multipart("b", b"x")),
    ],
)
def test_a_broken_multipart_is_raw(content_type: str, body: bytes) -> None:
    assert of(body, content_type).algorithm == "raw1"


# All of them -------------------------------------------------------------------------------------


def test_above_the_limit_a_body_is_raw() -> None:
    inside = b'"' + b"x" * (CANONICAL_LIMIT_BYTES - 2) + b'"'
    assert of(inside).algorithm == "json1"
    assert of(inside + b" ").algorithm == "raw1"


@given(st.binary(max_size=64), st.lists(st.integers(0, 64), max_size=4), st.sampled_from([JSON, FORM, "text/plain"]))
def test_how_a_body_was_cut_into_chunks_does_not_matter(body: bytes, cuts: list[int], content_type: str) -> None:
    edges = [0, *sorted(cuts), len(body)]
    chunks = [body[start:end] for start, end in pairwise(edges)]
    joined = fingerprint_body(content_type, [body])
    assert fingerprint_body(content_type, [b"".join(chunks)]) == joined
    assert fingerprint_body(content_type, chunks) == joined


types = st.one_of(
    st.text(),
    st.sampled_from([JSON, FORM, "a/b+json", "multipart/form-data; boundary=b", 'multipart/form-data;boundary="']),
)
bodies = st.one_of(
    st.binary(),
    st.text().map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(st.sampled_from([b"--b", b"\r\n", b"--", b"x", b"{", b"}", b"[", b'"', b":", b"1", b"=", b"&", b"%"])).map(
        b"".join
    ),
)


@given(types, bodies)
def test_nothing_ever_fails(content_type: str, body: bytes) -> None:
    found = fingerprint_body(content_type, [body])
    assert len(found.digest) == 32
    assert found == fingerprint_body(content_type, [body])
    assert Fingerprint.parse(str(found)) == found


@given(st.text(), st.text(), st.text(), types, bodies)
def test_no_request_ever_fails(method: str, path: str, query: str, content_type: str, body: bytes) -> None:
    assert len(fingerprint_http(method, path, query, content_type, [body]).digest) == 32


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)


@given(values, values)
def test_json_agrees_exactly_when_the_values_do(one: Any, two: Any) -> None:
    first, second = json.dumps(one), json.dumps(two, ensure_ascii=False, indent=2)
    try:
        second_body = second.encode()
    except UnicodeEncodeError:
        return  # a lone surrogate has no UTF-8
    same = json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    assert (of(first) == of(second_body)) == same


# Requests ----------------------------------------------------------------------------------------

REQUEST: dict[str, Any] = {
    "method": "POST",
    "path": "/payments",
    "query": "a=1",
    "content_type": JSON,
    "body": [b'{"amount":1}'],
}
MUTATIONS: dict[str, Any] = {
    "method": "PUT",
    "path": "/payments/",
    "query": "a=2",
    "content_type": "application/vnd.x+json",
    "body": [b'{"amount":2}'],
}


def test_every_part_of_a_request_counts_alone_and_in_pairs() -> None:
    changed = [{}, *({name: MUTATIONS[name]} for name in MUTATIONS)]
    changed += [{a: MUTATIONS[a], b: MUTATIONS[b]} for a, b in combinations(MUTATIONS, 2)]
    found = {fingerprint_http(**{**REQUEST, **change}) for change in changed}
    assert len(found) == len(changed)


def test_parts_of_a_request_do_not_run_into_each_other() -> None:
    assert fingerprint_http("POST", "/a", "b", "", []) != fingerprint_http("POST", "/ab", "", "", [])
    assert fingerprint_http("POST", "/a", "", "", []) != fingerprint_http("POST", "/", "a", "", [])


def test_what_a_retry_may_change_does_not_count() -> None:
    retry = {
        **REQUEST,
        "method": "post",
        "content_type": "application/json;charset=UTF-8",
        "body": [b'{"amount"', b": 1}"],
    }
    assert fingerprint_http(**retry) == fingerprint_http(**REQUEST)


def test_an_empty_body_is_a_request_too() -> None:
    assert fingerprint_http("DELETE", "/x", "", "", []) == fingerprint_http("DELETE", "/x", "", "", [b""])


def test_stable_for_ever() -> None:
    """Golden: another digest would turn every retry over a deployment into a mismatch."""
    assert (
        str(fingerprint_http(**REQUEST))
        == "http-json1:12:be6c82c39d5131462dd043bce5238cd88ef79e13c4d2d7ef471c3a20da37e3e3"
    )
    assert (
        str(fingerprint_text("call1", '{"a":1}'))
        == "call1:7:015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    )


def test_media_type() -> None:
    assert media_type("Text/HTML; charset=x") == "text/html"
    assert media_type("") == ""


def test_all_three_parts_of_a_fingerprint_are_compared() -> None:
    base = Fingerprint("raw1", b"d" * 32, 3)
    assert base != base._replace(algorithm="json1")
    assert base != base._replace(digest=b"e" * 32)
    assert base != base._replace(length=4)
