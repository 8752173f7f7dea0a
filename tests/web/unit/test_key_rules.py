"""The answer to a key that cannot be used names the rule that it broke, and no other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retrysafe.core.problem_names import problem_name
from retrysafe.errors import MalformedKey
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.key_header import KeyRule, read_key
from tests.web.unit.harness import Counting, World, WsgiCall, call, scope_of, who

UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


async def detail(key: str, rule: KeyRule, *more: str) -> str:
    middleware = IdempotencyMiddleware(Counting(), safe=World().safe, scope=who, key_rule=rule)
    headers = [(b"idempotency-key", line.encode()) for line in more]
    told = await call(middleware, scope_of(key=key, headers=headers))
    body: dict[str, Any] = json.loads(told.body)
    assert (told.status, problem_name(body["type"])) == (400, "malformed-key")
    text: str = body["detail"]
    assert key not in text
    return text


async def test_a_rule_for_uuids_says_so_and_nothing_about_lengths() -> None:
    for rule in (KeyRule(uuid=True), KeyRule(uuid=True, min_length=20)):
        told = await detail("order-7", rule)
        assert "UUID" in told
        assert "255" not in told
        assert "characters" not in told


async def test_a_least_length_says_how_long() -> None:
    told = await detail("order-7", KeyRule(min_length=16))
    assert "7 characters" in told
    assert "send 16 to 255" in told


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ('"abc-quoted";v=1', "parameters"),
        ('"abc-quoted" ; v', "parameters"),
        ('"abc-quoted" more', "behind the quoted key"),
        ('"abc-one","two"', "behind the quoted key"),
        ('"abc-open', "RFC 8941"),
        ("abc,def-two", "comma"),
        ("k" * 300, "300 characters"),
    ],
)
async def test_each_fault_in_its_own_words(key: str, words: str) -> None:
    assert words in await detail(key, KeyRule())


async def test_two_lines_are_two_lines() -> None:
    told = await detail("abc-one", KeyRule(), "abc-two")
    assert "2 header lines" in told
    assert "255" not in told


def test_a_uuid_is_one_with_hyphens_and_without() -> None:
    rule = KeyRule(uuid=True)
    for good in (UUID, UUID.upper(), UUID.replace("-", "")):
        assert read_key([good], rule) == good
        assert read_key([f'"{good}"'], rule) == good
    for bad in (f"{{{UUID}}}", f"urn:uuid:{UUID}", UUID + "0", UUID.replace("-", "")[:-1], UUID.replace("-", "", 1)):
        with pytest.raises(MalformedKey, match="takes only UUIDs"):
            read_key([bad], rule)
    with pytest.raises(MalformedKey, match="at least 36"):
        read_key([UUID.replace("-", "")], KeyRule(uuid=True, min_length=36))


def test_wsgi_says_the_same() -> None:
    from retrysafe.web import wsgi

    middleware = wsgi.IdempotencyMiddleware(lambda *_: [], safe=World().safe, scope=who, key_rule=KeyRule(uuid=True))
    assert b"UUID" in WsgiCall(middleware, key="order-7").body
