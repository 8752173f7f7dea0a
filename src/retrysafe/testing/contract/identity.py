"""Identity: kind, namespace, scope and key are compared exactly (I26) and stored unchanged."""

from __future__ import annotations

import unicodedata

from retrysafe.testing.builders import answer, claim, complete, listing, record_of
from retrysafe.testing.driver import Do

CAFE = "caf\u00e9"

TWINS = {
    "case": (claim("abc"), claim("ABC")),
    "trailing-space": (claim("abc"), claim("abc ")),
    "leading-space": (claim("abc"), claim(" abc")),
    "trailing-newline": (claim("abc"), claim("abc\n")),
    "nfc-nfd": (claim(unicodedata.normalize("NFC", CAFE)), claim(unicodedata.normalize("NFD", CAFE))),
    "accent": (claim("cafe"), claim(CAFE)),
    "sharp-s": (claim("straße"), claim("strasse")),
    "fullwidth": (claim("1"), claim("\uff11")),
    "leading-zero": (claim("1"), claim("01")),
    "number-like": (claim("1e3"), claim("1000")),
    "scope-key": (claim("bc", scope="a"), claim("c", scope="ab")),
    "scope-with-separator": (claim("b", scope="a:"), claim(":b", scope="a")),
    "scope-case": (claim("k", scope="Tenant"), claim("k", scope="tenant")),
    "scope": (claim("k", scope="t1"), claim("k", scope="t2")),
    "kind": (claim("k", kind="http"), claim("k", kind="function")),
    "namespace": (claim("k", namespace="live"), claim("k", namespace="test")),
    "namespace-scope": (claim("k", namespace="a", scope="bc"), claim("k", namespace="ab", scope="c")),
    "long": (claim("x" * 255), claim("x" * 254 + "y")),
}


def test_twins_are_two_keys(do: Do) -> None:
    """All keys in one test: a key that the store confuses with any other is not granted."""
    claims = {(one.namespace, one.kind, one.scope, one.key): one for pair in TWINS.values() for one in pair}
    owner = {name: do(one) for name, one in claims.items()}
    assert [name for name, reply in owner.items() if not reply.granted] == []
    for number, reply in enumerate(owner.values()):
        assert do(complete(reply, b"%d" % number)) is True
    for number, (name, one) in enumerate(claims.items()):
        assert do.record(one).answer == answer(b"%d" % number), name


ODD = {
    "quotes": "a'b\"c`d",
    "sql": "'; DROP TABLE retrysafe_keys; --",
    "placeholders": "%s %(id)s $1 :id ? ?1 {0}",
    "backslashes": "\\' \\0 \\x00 \\\\",
    "lua": "]]..redis.call('flushall')--[[",
    "glob": "*?[a-z]^",
    "like": "100%_x",
    "hash-tag": "{tag}{}",
    "crlf": "a\r\nSET x y\r\n",
    "tabs": "\ta\x0b\x0c\x1b",
    "json": '{"a": [1, null]}',
    "colons": "::a:b::",
    "emoji": "👩‍👩‍👧 zero\u200bwidth",
    "right-to-left": "\u202eabc",
    "long": "k" * 1024,
    "long-in-bytes": "🙂" * 255,
    "spaces": "   ",
}


def test_odd_text_comes_back_as_it_was(do: Do) -> None:
    for text in ODD.values():
        assert_stored_unchanged(do, text)


def assert_stored_unchanged(do: Do, text: str) -> None:
    op = claim(text, scope=text, target=text, namespace=text[:60])
    owner = do(op)
    record = record_of(owner)
    assert (record.key, record.scope, record.target, record.namespace) == (text, text, text, text[:60])
    assert do(complete(owner, b"x", now=1)) is True
    assert do.record(op, now=1).key == text
    assert list(do.list_all(listing(scope=text, now=1))) == [op.id]
    assert list(do.list_all(listing(namespace=text[:60], now=1))) == [op.id]
    assert do(claim(text, scope=text, target=text, namespace=text[:60], now=2)).granted is False


def test_a_filter_is_not_a_pattern(do: Do) -> None:
    """I26: `%`, `_`, `*` and `?` in a scope have no special meaning."""
    for scope in ("a%", "a_", "a*", "a?", "ab", "abc", "A%", "a% "):
        do(claim("k", scope=scope))
    for scope in ("a%", "a_", "a*", "a?"):
        assert [record.scope for record in do.list_all(listing(scope=scope)).values()] == [scope]


def test_tenants_do_not_meet(do: Do) -> None:
    """I26: what B sees does not depend on whether A uses the same key."""
    owner = do(claim("k", scope="a", body=b"a's request"))
    assert do(complete(owner, b"a's answer")) is True
    before = do.record(owner)
    other = do(claim("k", scope="b", body=b"b's request"))
    assert other.granted
    assert (record_of(other).attempt, record_of(other).answer) == (1, None)
    assert do.record(owner) == before
