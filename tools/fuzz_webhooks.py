"""The webhook targets of tools/fuzz.py: a genuine delivery of each scheme, broken in every way we could think of.

Only VerificationError may come out; and what is accepted must be what the sender signed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from retrysafe.errors import VerificationError
from retrysafe.webhooks import Custom, GitHub, Scheme, Shopify, Slack, StandardWebhooks, Stripe, Svix

NOW = 1_700_000_000.0
SEED = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
BODY = json.dumps({"id": "evt_1", "type": "a.b", "event_id": "Ev1", "data": {"n": 1}}).encode()

SCHEMES: dict[str, Scheme] = {
    "standard": StandardWebhooks(b"k" * 32, b"old" * 10),
    "standard-ed25519": StandardWebhooks(SEED),
    "svix": Svix(b"k" * 32),
    "stripe": Stripe("whsec_new", "whsec_old"),
    "github": GitHub("secret"),
    "shopify": Shopify("client secret"),
    "slack": Slack("signing secret", "old secret"),
    "custom": Custom(
        "acme", "secret", signature="X-Sig", prefix="s=", separator=",", encoding="base64", algorithm="sha512",
        content="{timestamp}|{body}", timestamp="X-Time", id_field="id", type_field="type",
    ),
    "custom-id": Custom("acme", "s", signature="X-Sig", content="{id}:{body}", id_header="X-Id", type_header="X-Type"),
}  # fmt: skip
SIGNS_ID = {name for name in SCHEMES if name not in ("github", "shopify")}

TIMES = (
    "", "0", "-1", "+1700000000", " 1700000000", "1_700_000_000", "1700000000.0", "1.7e9", "1700000301", "1699999699",
    "1700000300", "1699999700", "9" * 12, "9" * 13, "9" * 5000, "nan", "inf", "0x6553f100", "١٧٠٠٠٠٠٠٠٠",
    "1700000000\n", "𝟏𝟕𝟎𝟎𝟎𝟎𝟎𝟎𝟎𝟎", "¹", "1700000000,1700000000",
)  # fmt: skip
SPICE = "=,. :;v1a0\t\r\n\0\x7f\x80ÿé…\ud800-_+/{}[]\"'\\٣"
ODD_HEADERS: tuple[Any, ...] = (
    None,
    7,
    "abc",
    [],
    [("a",)],
    [("a", "b", "c")],
    {1: 2},
    [(b"a", None)],
    {"a": ["b"]},
    b"x",
)
ODD_BODIES: tuple[Any, ...] = (None, "", "text", 7, [], {}, bytearray(b"x"), memoryview(b"x"))
BODIES = (
    b"", b"\xff\xfe", b"{", b"[]", b"null", b"[" * 20_000, b'{"id":' * 5_000, b'{"id": 7}', b'{"id": "\\ud800"}',
    b'{"id": ""}', b'{"id": "' + b"x" * 300 + b'"}', b'{"id": ' + b"9" * 6_000 + b"}", b"payload=%7B%7D", b"a=1&" * 500,
    b'{"type":"url_verification"}',
)  # fmt: skip


class Attempt(NamedTuple):
    headers: Any
    body: Any


Change = Callable[[random.Random, list[tuple[Any, Any]], bytes, Scheme], "Attempt"]


def delivery(scheme: Scheme, body: bytes = BODY) -> dict[str, str]:
    return scheme.sign(body, id="msg_1", type="a.b", now=NOW)


def broken(rng: random.Random, text: str) -> str:
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:at] + rng.choice(SPICE) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + 1 :]
        elif kind == 2:
            text = text[at:] + text[:at]
        elif kind == 3:
            text = (text[:at] + text)[:9_000]
        elif kind == 4:
            text = text[:at] + text[at:].swapcase()
        else:
            text = text + rng.choice((" ", ",", ", ")) + text
    return text


def in_a_header(rng: random.Random, pairs: list[tuple[Any, Any]], body: bytes, scheme: Scheme) -> Attempt:
    at = rng.randrange(len(pairs))
    pairs[at] = (pairs[at][0], broken(rng, pairs[at][1]))
    return Attempt(pairs, body)


def in_the_time(rng: random.Random, pairs: list[tuple[Any, Any]], body: bytes, scheme: Scheme) -> Attempt:
    time = rng.choice(TIMES)
    return Attempt([(name, value.replace(str(int(NOW)), time)) for name, value in pairs], body)


def of_headers(rng: random.Random, pairs: list[tuple[Any, Any]], body: bytes, scheme: Scheme) -> Attempt:
    """One gone, one twice, one in another case, one more, all as bytes, or no headers at all."""
    at, kind = rng.randrange(len(pairs)), rng.randrange(7)
    if kind == 0:
        del pairs[at]
    elif kind == 1:
        pairs.append(pairs[at])
    elif kind == 2:
        pairs.append((pairs[at][0].upper(), broken(rng, pairs[at][1])))
    elif kind == 3:
        pairs = [(name.swapcase().encode(), value.encode("utf-8", "replace")) for name, value in pairs]
    elif kind == 4:
        pairs.append(("x-else", broken(rng, "else")))
    elif kind == 5:
        pairs[at] = (pairs[at][0], pairs[at][1] * rng.choice((2, 50, 2_000)))
    else:
        return Attempt(rng.choice(ODD_HEADERS), body)
    return Attempt(pairs, body)


def of_the_body(rng: random.Random, pairs: list[tuple[Any, Any]], body: bytes, scheme: Scheme) -> Attempt:
    kind = rng.randrange(4)
    if kind == 0:
        at = rng.randrange(len(body))
        return Attempt(pairs, body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :])
    if kind == 1:
        return Attempt(pairs, rng.choice(ODD_BODIES))
    if kind == 2:
        return Attempt(pairs, body + rng.choice((b" ", b"\n", b"\0", b"x" * 100)))
    strange = rng.choice(BODIES)  # strange, and signed all the same
    return Attempt(list(delivery(scheme, strange).items()), strange)


CHANGES: tuple[Change, ...] = (in_a_header, in_a_header, in_the_time, of_headers, of_the_body)


def attempts(name: str) -> Callable[[random.Random], Iterator[Attempt]]:
    scheme = SCHEMES[name]
    genuine = delivery(scheme)

    def make(rng: random.Random) -> Iterator[Attempt]:
        while True:
            yield rng.choice(CHANGES)(rng, list(genuine.items()), BODY, scheme)

    return make


def checker(name: str) -> Callable[[Attempt], bool]:
    scheme = SCHEMES[name]
    original = scheme.verify(delivery(scheme), BODY, now=NOW)

    def check(attempt: Attempt) -> bool:
        try:
            found = scheme.verify(attempt.headers, attempt.body, now=NOW)
        except VerificationError:
            return False
        if attempt.body == BODY:
            assert name not in SIGNS_ID or found.key == original.key, f"another key was believed: {found.key!r}"
            assert name in SIGNS_ID or original.key.split()[-1] in found.key, "a key without the signed body in it"
        else:
            assert attempt.body in BODIES, "a body nobody signed was believed"
        return True

    return check


TARGETS: dict[str, tuple[Callable[[random.Random], Iterator[Any]], Callable[[Any], bool]]] = {
    f"webhooks-{name}": (attempts(name), checker(name)) for name in SCHEMES
}
