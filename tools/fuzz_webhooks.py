"""The webhook targets of tools/fuzz.py: valid deliveries of each scheme, changed in many ways.

`verify` may only raise VerificationError, and may only accept what the sender signed.
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
ODD_CHARACTERS = "=,. :;v1a0\t\r\n\0\x7f\x80ÿé…\ud800-_+/{}[]\"'\\٣"
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


class Delivery(NamedTuple):
    """The headers and the body of one delivery. A changed delivery may hold any type."""

    headers: Any
    body: Any


Change = Callable[[random.Random, list[tuple[Any, Any]], bytes, Scheme], "Delivery"]


def sign_delivery(scheme: Scheme, body: bytes = BODY) -> dict[str, str]:
    return scheme.sign(body, id="msg_1", type="a.b", now=NOW)


def mutate_text(rng: random.Random, text: str) -> str:
    for _ in range(rng.randrange(1, 4)):
        index = rng.randrange(len(text) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:index] + rng.choice(ODD_CHARACTERS) + text[index:]
        elif kind == 1:
            text = text[:index] + text[index + 1 :]
        elif kind == 2:
            text = text[index:] + text[:index]
        elif kind == 3:
            text = (text[:index] + text)[:9_000]
        elif kind == 4:
            text = text[:index] + text[index:].swapcase()
        else:
            text = text + rng.choice((" ", ",", ", ")) + text
    return text


def change_header(rng: random.Random, pairs: list[tuple[Any, Any]], body: bytes, scheme: Scheme) -> Delivery:
    index = rng.randrange(len(pairs))
    pairs[index] = (pairs[index][0], mutate_text(rng, pairs[index][1]))
    return Delivery(pairs, body)


def change_time(rng: random.Random, pairs: list[tuple[Any, Any]], body: bytes, scheme: Scheme) -> Delivery:
    time = rng.choice(TIMES)
    return Delivery([(name, value.replace(str(int(NOW)), time)) for name, value in pairs], body)


def change_headers(rng: random.Random, pairs: list[tuple[Any, Any]], body: bytes, scheme: Scheme) -> Delivery:
    """Remove a header, repeat one, change its case, add one, make all of them bytes, or pass something else."""
    index, kind = rng.randrange(len(pairs)), rng.randrange(7)
    if kind == 0:
        del pairs[index]
    elif kind == 1:
        pairs.append(pairs[index])
    elif kind == 2:
        pairs.append((pairs[index][0].upper(), mutate_text(rng, pairs[index][1])))
    elif kind == 3:
        pairs = [(name.swapcase().encode(), value.encode("utf-8", "replace")) for name, value in pairs]
    elif kind == 4:
        pairs.append(("x-else", mutate_text(rng, "else")))
    elif kind == 5:
        pairs[index] = (pairs[index][0], pairs[index][1] * rng.choice((2, 50, 2_000)))
    else:
        return Delivery(rng.choice(ODD_HEADERS), body)
    return Delivery(pairs, body)


def change_body(rng: random.Random, pairs: list[tuple[Any, Any]], body: bytes, scheme: Scheme) -> Delivery:
    kind = rng.randrange(4)
    if kind == 0:
        index = rng.randrange(len(body))
        return Delivery(pairs, body[:index] + bytes([rng.randrange(256)]) + body[index + 1 :])
    if kind == 1:
        return Delivery(pairs, rng.choice(ODD_BODIES))
    if kind == 2:
        return Delivery(pairs, body + rng.choice((b" ", b"\n", b"\0", b"x" * 100)))
    strange = rng.choice(BODIES)  # an odd body with a valid signature
    return Delivery(list(sign_delivery(scheme, strange).items()), strange)


CHANGES: tuple[Change, ...] = (change_header, change_header, change_time, change_headers, change_body)


def make_generator(name: str) -> Callable[[random.Random], Iterator[Delivery]]:
    scheme = SCHEMES[name]
    valid = sign_delivery(scheme)

    def generate(rng: random.Random) -> Iterator[Delivery]:
        while True:
            yield rng.choice(CHANGES)(rng, list(valid.items()), BODY, scheme)

    return generate


def make_checker(name: str) -> Callable[[Delivery], bool]:
    scheme = SCHEMES[name]
    original = scheme.verify(sign_delivery(scheme), BODY, now=NOW)

    def check(delivery: Delivery) -> bool:
        try:
            found = scheme.verify(delivery.headers, delivery.body, now=NOW)
        except VerificationError:
            return False
        if delivery.body == BODY:
            assert name not in SIGNS_ID or found.key == original.key, f"another key was accepted: {found.key!r}"
            assert name in SIGNS_ID or original.key.split()[-1] in found.key, (
                "the key does not contain the hash of the signed body"
            )
        else:
            assert delivery.body in BODIES, "a body without a signature was accepted"
        return True

    return check


TARGETS: dict[str, tuple[Callable[[random.Random], Iterator[Any]], Callable[[Any], bool]]] = {
    f"webhooks-{name}": (make_generator(name), make_checker(name)) for name in SCHEMES
}
