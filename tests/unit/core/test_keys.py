"""Keys from headers, ids, derived keys and templates."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.core.keys import (
    DERIVED_KEY_CHARS,
    MAX_KEY_CHARS,
    MAX_TEXT_CHARS,
    Key,
    Template,
    derive,
    frame,
    parse_key,
    record_id,
)
from retrysafe.errors import MalformedKey, ScopeRequired, TemplateError

# The header --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("8e03978e", "8e03978e"),
        ('"8e03978e"', "8e03978e"),
        (' \t"8e03978e" \t', "8e03978e"),
        ("  8e03978e ", "8e03978e"),
        ('"a,b"', "a,b"),
        (r'"a\"b"', 'a"b'),
        (r'"a\\b"', "a\\b"),
        ('a"b', 'a"b'),
        ("a\\b", "a\\b"),
        ("~!#$%&'()*+-./:;<=>?@[]^_`{|}", "~!#$%&'()*+-./:;<=>?@[]^_`{|}"),
        ("x" * MAX_KEY_CHARS, "x" * MAX_KEY_CHARS),
        ('"' + "x" * MAX_KEY_CHARS + '"', "x" * MAX_KEY_CHARS),
    ],
)
def test_a_key_in_either_spelling(header: str, key: str) -> None:
    assert parse_key(header) == key


@pytest.mark.parametrize(
    "header",
    [
        "",
        " ",
        "\t",
        '""',
        '" "',
        '"a b"',
        "a b",
        "x" * (MAX_KEY_CHARS + 1),
        '"' + "x" * (MAX_KEY_CHARS + 1) + '"',
        "a,b",
        "a, b",
        '"a", "b"',
        "a\0b",
        "a\rb",
        "a\nb",
        "a\r\nX-Evil: 1",
        '"a\nb"',
        "abc\n",
        '"abc"\n',
        "ä",
        '"ä"',
        "k\u200b",
        "\u00a0",
        "\x7f",
        '"abc',
        '"',
        '"abc\\"',
        '"abc"def',
        '"abc";q=1',
        '"abc" "def"',
        r'"a\nb"',
        '"a\\',
    ],
)
def test_a_malformed_key_is_named_and_explained(header: str) -> None:
    with pytest.raises(MalformedKey) as refused:
        parse_key(header)
    assert repr(header)[1:60] in str(refused.value)
    assert "1 to 255 visible ASCII" in str(refused.value)
    assert refused.value.status == 400


@given(st.text())
def test_whatever_comes_it_is_a_key_or_malformed(header: str) -> None:
    try:
        key = parse_key(header)
    except MalformedKey:
        return
    assert 1 <= len(key) <= MAX_KEY_CHARS
    assert all(0x21 <= ord(character) <= 0x7E for character in key)


visible = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=MAX_KEY_CHARS)


@given(visible)
def test_the_two_spellings_are_one_key(key: str) -> None:
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert parse_key(quoted) == key
    if "," not in key and not key.startswith('"'):
        assert parse_key(key) == key


def test_a_long_header_is_not_repeated_in_full() -> None:
    with pytest.raises(MalformedKey) as refused:
        parse_key("x" * 100_000)
    assert len(str(refused.value)) < 400


# Framing and ids ---------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.text(), st.binary())), st.lists(st.one_of(st.text(), st.binary())))
def test_two_lists_of_parts_never_frame_alike(one: list[Any], two: list[Any]) -> None:
    def as_bytes(parts: list[Any]) -> list[bytes]:
        return [part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass") for part in parts]

    assert (frame(*one) == frame(*two)) == (as_bytes(one) == as_bytes(two))


def test_no_choice_of_key_reaches_another_tenant() -> None:
    assert record_id("http", "n", "a", "bc") != record_id("http", "n", "ab", "c")
    assert record_id("http", "n", "a", "k") != record_id("http", "na", "", "k")


def test_an_id_is_stable_for_ever() -> None:
    """Golden: another digest would forget every key ever stored."""
    found = record_id("http", "default", "tenant-1", "8e03978e").hex()
    assert found == "60c458a29f09564e57af93d7de40d0b4ea753e83b6da029dde6d4b52ec20a6e9"


def test_every_part_of_an_id_counts() -> None:
    parts = [
        ("http", "n", "s", "k"),
        ("function", "n", "s", "k"),
        ("http", "m", "s", "k"),
        ("http", "n", "t", "k"),
        ("http", "n", "s", "l"),
        ("http", "n", "S", "k"),
        ("http", "n", "s", "k "),
    ]
    ids = {record_id(*part) for part in parts}  # type: ignore[arg-type]  # the first is a kind
    assert len(ids) == len(parts)
    assert {len(found) for found in ids} == {32}


@pytest.mark.parametrize("scope", ["", None, 7, b"tenant"])
def test_no_scope_no_key(scope: Any) -> None:
    with pytest.raises(ScopeRequired) as refused:
        Key("k", scope)
    assert repr(scope) in str(refused.value)


@pytest.mark.parametrize("value", ["", None, 7, "a\0b", "\ud800", "x" * (MAX_TEXT_CHARS + 1)])
def test_a_key_that_cannot_be_stored_is_refused(value: Any) -> None:
    with pytest.raises(MalformedKey) as refused:
        Key(value, "tenant")
    assert f"1 to {MAX_TEXT_CHARS} characters" in str(refused.value)


@pytest.mark.parametrize("scope", ["a\0b", "\udfff", "x" * (MAX_TEXT_CHARS + 1)])
def test_a_scope_that_cannot_be_stored_is_refused(scope: str) -> None:
    with pytest.raises(MalformedKey):
        Key("k", scope)


def test_a_key_knows_its_id() -> None:
    assert Key("k", "s", "job").id("n") == record_id("job", "n", "s", "k")
    assert Key("k", "s").kind == "http"


# Derived keys ------------------------------------------------------------------------------------


def test_derived_keys_are_stable_for_ever() -> None:
    """Golden: another value would pay a second time."""
    assert derive("order-7", "stripe", "charge") == "c4a5705eea33009ead844d1e934869208c83dcb8269df635"
    assert (
        derive(b"\x00" * 16, "stripe", "charge", part="2", undo=True)
        == "2ada6cc947d10940e09cc8684252d7c86e03ff2cc8392cf1"
    )
    assert derive(Key("order-7", "tenant-1"), "stripe", "charge") == "cb679082707071774309807a83523f09f2180cb6b1442568"


def test_derived_keys_differ_in_every_input() -> None:
    keys = [
        derive("k", "stripe", "charge"),
        derive("l", "stripe", "charge"),
        derive("k", "adyen", "charge"),
        derive("k", "stripe", "refund"),
        derive("k", "stripe", "charge", undo=True),
        derive("k", "stripe", "charge", part="1"),
        derive("k", "stripe", "charge", part="do"),
        derive("k", "stripecharge", ""),
        derive(Key("k", "a"), "stripe", "charge"),
        derive(Key("k", "b"), "stripe", "charge"),
        derive(Key("k", "a", "job"), "stripe", "charge"),
    ]
    assert len(set(keys)) == len(keys)
    for key in keys:
        assert len(key) == DERIVED_KEY_CHARS <= 64
        assert key.isalnum()


@given(st.text(), st.text(), st.text(), st.text(), st.booleans())
def test_a_derived_key_suits_any_provider(key: str, service: str, step: str, part: str, undo: bool) -> None:
    made = derive(key, service, step, part=part, undo=undo)
    assert len(made) <= 64
    assert made.isascii()
    assert ":" not in made
    assert made == derive(key, service, step, part=part, undo=undo)


# Templates ---------------------------------------------------------------------------------------


def filled(template: str, **arguments: Any) -> str:
    return Template.parse(template).fill(arguments)


def test_values_are_framed() -> None:
    assert filled("{a}{b}", a=1, b=23) != filled("{a}{b}", a=12, b=3)
    assert filled("{a}:{b}", a="x:y", b="z") != filled("{a}:{b}", a="x", b="y:z")
    assert filled("{a}{b}", a='x"}{"y', b="z") != filled("{a}{b}", a="x", b='y"}{"z')
    assert filled("receipt:{order_id}", order_id=42) == "receipt:{42}"


plain = st.one_of(st.integers(), st.text(min_size=1), st.booleans(), st.floats(allow_nan=False), st.binary())


@given(st.tuples(plain, plain), st.tuples(plain, plain))
def test_two_calls_share_a_key_only_if_they_are_one_call(one: tuple[Any, Any], two: tuple[Any, Any]) -> None:
    template = Template.parse("{a}{b}")
    same = [(type(v), repr(v)) for v in one] == [(type(v), repr(v)) for v in two]
    assert (
        template.fill(dict(zip("ab", one, strict=True))) == template.fill(dict(zip("ab", two, strict=True)))
    ) == same


@pytest.mark.parametrize(
    "pair", list(combinations([1, "1", 1.0, True, b"1", "{1}", '"1"', [1], (1,), {"a": 1}, {1: "a"}], 2)), ids=repr
)
def test_types_are_told_apart(pair: tuple[Any, Any]) -> None:
    assert filled("k:{a}", a=pair[0]) != filled("k:{a}", a=pair[1])


def test_literal_braces_are_kept() -> None:
    assert filled("{{x}}:{a}", a=1) == "{x}:{1}"


@pytest.mark.parametrize("value", [None, ""])
def test_an_empty_value_is_refused(value: Any) -> None:
    with pytest.raises(TemplateError, match=r"order_id is (None|'')"):
        filled("receipt:{order_id}", order_id=value)


@pytest.mark.parametrize("value", [0, False, 0.0, b"", [], {}])
def test_a_falsy_value_is_a_value(value: Any) -> None:
    assert filled("receipt:{order_id}", order_id=value)


def test_what_cannot_be_written_is_refused_by_name() -> None:
    with pytest.raises(TemplateError, match=r"order cannot be part of a key: .*object"):
        filled("receipt:{order}", order=object())
    with pytest.raises(TemplateError, match="order cannot be part of a key"):
        filled("receipt:{order}", order=10**5000)


@pytest.mark.parametrize(
    "text",
    ["", "constant", "{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>10}", "{a", "a}", "{a b}", "{a:{b}}", "{-}"],
)
def test_a_template_that_cannot_make_keys(text: str) -> None:
    with pytest.raises(TemplateError) as refused:
        Template.parse(text)
    assert repr(text) in str(refused.value)


def test_the_fields_of_a_template() -> None:
    assert Template.parse("x:{b}:{a}:{b}").fields == ("b", "a", "b")
