"""The compiled helper gives the bytes of its definitions, or leaves the decision to them. The long runs: `python
tools/fuzz.py speedups`, and with sanitizers `python tools/sanitize_speedups.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools import fuzz

from retrysafe.core.fingerprint import build_json_canonicalizer, canonicalize_json
from retrysafe.core.speedups import FORM, SPEEDUPS, STATUS, Speedups, load_speedups
from tests.conftest import in_ci

LARGEST = b'"' + b"x" * (64 * 1024 - 2) + b'"'


@pytest.fixture(scope="module")
def compiled() -> Speedups:
    """The helper. Without it: skipped at home, failed in CI."""
    if SPEEDUPS is not None:
        return SPEEDUPS
    why = f"the C part of retrysafe-speedups is {STATUS}"
    if in_ci():
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


# Canonical JSON ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"b": 1, "a": 2}', b'{"a":2,"b":1}'),
        (b" \t\r\n[ 1 , -1 , 0 ] \t\r\n", b"[1,-1,0]"),
        (b'{"b":{"d":[],"c":{}},"a":[true,false,null]}', b'{"a":[true,false,null],"b":{"c":{},"d":[]}}'),
        (b'{"aa":1,"a":2,"":3,"B":4}', b'{"":3,"B":4,"a":2,"aa":1}'),
        (b"[1.50,-0.0,1E+05]", rb'[{"\u0000n":"1.50"},{"\u0000n":"-0.0"},{"\u0000n":"1E+05"}]'),
        (b"999999999999999999", b"999999999999999999"),
        (b'"-0"', b'"-0"'),
        (b"[" * 31 + b"7" + b"]" * 31, b"[" * 31 + b"7" + b"]" * 31),
        (LARGEST, LARGEST),
    ],
    ids=lambda value: value[:40].decode(),
)
def test_a_usual_body_is_written_by_the_helper(compiled: Speedups, body: bytes, text: bytes) -> None:
    assert compiled.canonicalize_json(body) == text == canonicalize_json(body)


UNUSUAL = [
    (b'{"a":1,"a":2}', True),
    (b'{"b":1,"a":1,"b":2}', True),
    (b"-0", True),
    (b"[1000000000000000000]", True),
    (rb'"\u0041"', True),
    (rb'{"\u0000n":"1.5"}', True),
    ('"é"'.encode(), True),
    (b'"\x7f"', True),
    (b"[" * 33 + b"]" * 33, True),
    (json.dumps({str(number): number for number in range(257)}).encode(), True),
    (b"[" + b"1e1," * 1000 + b"1e1]", True),
    (LARGEST + b" ", True),
    *((body, False) for body in (b"", b" ", b"{", b"[1,]", b'{"a":1,}', b"{1:2}", b'{"a" 1}', b"[1 2]", b"1 2", b"01")),
    *(
        (body, False)
        for body in (b"1.", b"-", b"+1", b"1e", b".5", b"NaN", b"nul", b"nulll", b'"a', b'"\n"', b'"\x1f"')
    ),
    *((body, False) for body in (b"\xff", b'"\xc3"', b"\xef\xbb\xbf1", b"\0", b"1\0", b'{"a":1}}', b"[]]", b"\x0b1")),
]


@pytest.mark.parametrize(("body", "valid"), UNUSUAL, ids=lambda value: repr(value)[:40])
def test_an_unusual_body_is_left_to_the_definition(compiled: Speedups, body: bytes, valid: bool) -> None:
    assert compiled.canonicalize_json(body) is None
    canonicalize = build_json_canonicalizer(compiled)
    if valid:
        assert canonicalize(body, "") == canonicalize_json(body)
    else:
        with pytest.raises(ValueError):
            canonicalize(body, "")


@pytest.mark.parametrize("body", [bytearray(b"1"), memoryview(b"1"), "1", None, 1])
def test_only_bytes_are_read(compiled: Speedups, body: Any) -> None:
    assert compiled.canonicalize_json(body) is None


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(deadline=None)  # a busy machine is no failure
@given(DOCUMENTS, st.booleans(), st.sampled_from([None, 0, 3]))
def test_any_document_is_written_as_its_definition_writes_it(
    compiled: Speedups, value: Any, ascii_only: bool, indent: int | None
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    fuzz.TARGETS["speedups-json"][1](body)


@settings(deadline=None)
@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,0123456789-+.eE \ntruefalsn\\', max_size=40).map(str.encode))
def test_any_bytes_are_judged_as_their_definition_judges_them(compiled: Speedups, body: bytes) -> None:
    fuzz.TARGETS["speedups-json"][1](body)


@pytest.mark.parametrize("target", ["speedups-json", "speedups-packing"])
def test_the_fuzzer_finds_no_difference(compiled: Speedups, target: str) -> None:
    accepted, refused = fuzz.fuzz(target, 4_000, seed=1)
    assert accepted > 1_500
    assert refused > 300


# Packing -----------------------------------------------------------------------------------------


def test_usual_values_are_packed_by_the_helper(compiled: Speedups) -> None:
    """That the bytes are right is compared with the definitions, in test_redis_packing.py and by the fuzzer."""
    born = ("json1", b"d" * 32, 5, "shop", "http", "tenant", "ключ", "POST /pay", b"r" * 16)
    assert compiled.encode_born(*born) is not None
    assert compiled.encode_answer(201, b"{}", (("content-type", "application/json"),), "") is not None
    assert compiled.pack_key(b"retrysafe:{0}:", b"\x01\xff") == b"$18\r\nretrysafe:{0}:01ff\r\n"
    assert compiled.pack_words(b"abc", -12, b"") == b"$3\r\nabc\r\n$3\r\n-12\r\n$0\r\n\r\n"


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("encode_born", ("json1", b"d", 5, "", "http", "t", "\ud800", "", b"r")),
        ("encode_born", ("json1", b"d", True, "", "http", "t", "k", "", b"r")),
        ("encode_born", ("json1", bytearray(b"d"), 5, "", "http", "t", "k", "", b"r")),
        ("encode_answer", (2**31, b"", (), "")),
        ("encode_answer", (200, b"", [("a", "b")], "")),
        ("encode_answer", (200, b"", (("a", "b", "c"),), "")),
        ("encode_answer", (200, b"", (("a", b"b"),), "")),
        ("encode_answer", (200, b"", (("a", "b"),) * 65, "")),
        ("encode_answer", (200, b"", (), "x" * 256)),
        ("pack_key", ("text", b"id")),
        ("pack_words", (2**63,)),
        ("pack_words", (True,)),
        ("pack_words", ("text",)),
        ("pack_words", (b"",) * 17),
    ],
)
def test_odd_values_are_left_to_the_definition(compiled: Speedups, function: str, arguments: tuple[Any, ...]) -> None:
    assert getattr(compiled, function)(*arguments) is None


@pytest.mark.parametrize("function", ["encode_born", "encode_answer", "pack_key"])
def test_a_wrong_number_of_arguments_is_a_type_error(compiled: Speedups, function: str) -> None:
    with pytest.raises(TypeError, match=f"{function} takes"):
        getattr(compiled, function)(b"")


# Finding it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["off", "0", "No", " FALSE "])
def test_it_can_be_switched_off(value: str) -> None:
    """Whether or not its C part was built."""
    code = "from retrysafe.core.speedups import SPEEDUPS, STATUS; print(SPEEDUPS, STATUS)"
    environ = {**os.environ, "RETRYSAFE_SPEEDUPS": value}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
    assert done.stdout == f"None off: RETRYSAFE_SPEEDUPS={value}\n"


def test_without_it_the_definition_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "retrysafe_speedups", None)  # as if it were not installed
    found, status = load_speedups()
    assert found is None
    assert "retrysafe_speedups" in status
    assert build_json_canonicalizer(found) is canonicalize_json


def test_another_form_of_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.ModuleType("retrysafe_speedups")
    other.FORM = FORM + 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "retrysafe_speedups", other)
    assert load_speedups() == (None, f"off: retrysafe-speedups has form {FORM + 1}, this retrysafe knows form {FORM}")
