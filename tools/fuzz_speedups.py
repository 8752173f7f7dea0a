"""The targets of tools/fuzz.py for the compiled helper: each of its functions against its definition in Python.

`speedups-json`: documents in many spellings, whole and mutated. The helper gives the text of `canonicalize_json`, or
leaves the body to it. `speedups-packing`: claims and completions with usual and odd values, packed both ways.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from retrysafe.core.fingerprint import canonicalize_json
from retrysafe.core.ops import Claim, Complete
from retrysafe.core.records import Answer, Fence, Fingerprint
from retrysafe.core.speedups import SPEEDUPS, STATUS, Speedups
from retrysafe.stores.redis import packing
from retrysafe.stores.redis.compiled import build_packers
from retrysafe.stores.redis.layout import Layout

SPACES = ("", "", "", " ", "\n", "\t", "\r", "  ", " \r\n\t ")
ODD_SPACES = ("\f", "\v", "\0", "\xa0", "\u2028", "\ufeff")
WORDS = (
    "id", "name", "amount", "a", "A", "aa", "ab", "", "z", "0", "-0", "currency", "items", "x" * 300, "~", " ", "true",
    "{", "}", "[", ",", ":", "/", "'", "&<>", "n",
)  # fmt: skip
ODD_WORDS = (
    "\\n", "\\\\", '\\"', "\\u0000", "\\u0000n", "\\u0000d", "\\u0041", "\\ud800", "\\ud83d\\ude00", "\\/", "é", "ключ",
    "😀", "\x7f", "\x80", "\x01", "\x1f", "\t", "\0",
)  # fmt: skip
NUMBERS = (
    "0", "1", "-1", "10", "42", "123456789012345678", "-123456789012345678", "0.0", "1.0", "1.50", "-1.5", "1e5", "1E5",
    "1e+5", "1e-05", "-0.0", "0e0", "1.0e308", "12345.678901234567890123456789", "-0e1",
)  # fmt: skip
ODD_NUMBERS = (
    "-0", "00", "01", "-01", "1.", ".5", "1.e5", "1e", "1e+", "+1", "-", "1_000", "0x10", "1e5.5", "--1", "1-", "NaN",
    "Infinity", "-Infinity", "9" * 19, "9" * 400, "9" * 5_000, "-" + "9" * 19, "1" + "0" * 18, "18446744073709551616",
)  # fmt: skip
CONSTANTS = ("true", "false", "null")
ODD_CONSTANTS = ("True", "nul", "nulll", "tru", "t", "undefined", "")
PIECES = b'{}[]:,"\\ \n\t\r\0-+.eE0123456789truefalsn\x7f\x80\xff\xc3'
ODDITY = 0.01
"""How often a token is an odd one. Documents are mostly usual: only for those does the helper answer."""


def generate_json(rng: random.Random) -> Iterator[bytes]:
    while True:
        text = write_value(rng, rng.choice((0, 0, 0, 1, 2))) if rng.random() > 0.02 else write_large(rng)
        body = (space(rng) + text + space(rng)).encode("utf-8", "surrogatepass")
        yield body if rng.random() < 0.6 else mutate(rng, body)


def pick(rng: random.Random, usual: tuple[str, ...], odd: tuple[str, ...]) -> str:
    return rng.choice(odd if rng.random() < ODDITY else usual)


def space(rng: random.Random) -> str:
    return pick(rng, SPACES, ODD_SPACES)


def write_value(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(8) if depth < 5 else rng.randrange(4)
    if kind == 0:
        return pick(rng, CONSTANTS, ODD_CONSTANTS)
    if kind == 1:
        return pick(rng, NUMBERS, ODD_NUMBERS)
    if kind < 4:
        return write_string(rng)
    if kind == 4:
        parts = [space(rng) + write_value(rng, depth + 1) + space(rng) for _ in range(rng.randrange(4))]
        return "[" + (",".join(parts) or space(rng)) + pick(rng, ("]",), (",]", "", "]]", "}"))
    return write_object(rng, depth, rng.randrange(6))


def write_string(rng: random.Random) -> str:
    return '"' + "".join(pick(rng, WORDS, ODD_WORDS) for _ in range(rng.choice((1, 1, 1, 2, 3)))) + '"'


def write_object(rng: random.Random, depth: int, count: int) -> str:
    members = {write_string(rng): write_value(rng, depth + 1) for _ in range(count)}
    pairs = [*members.items(), *(list(members.items()) if rng.random() < ODDITY else [])]  # sometimes each key twice
    spaces = [[space(rng) for _ in range(4)] for _ in pairs]
    parts = [f"{a}{key}{b}:{c}{value}{d}" for (key, value), (a, b, c, d) in zip(pairs, spaces, strict=True)]
    return "{" + (",".join(parts) or space(rng)) + pick(rng, ("}",), (",}", "", "}}", "]"))


def write_large(rng: random.Random) -> str:
    """Documents around each of the helper's limits: depth, members, bytes, and numbers that become longer."""
    count = rng.choice((31, 32, 33, 255, 256, 257, 1_000))
    kind = rng.randrange(5)
    if kind == 0:
        return "[" * count + "]" * count
    if kind == 1:
        return '{"b":1,"a":' * count + "1" + "}" * count
    if kind == 2:
        keys = list(range(count))
        rng.shuffle(keys)
        return "{" + ",".join(f'"{key}":{key}' for key in keys) + "}"
    if kind == 3:
        return "[" + ",".join(["1e1"] * count) + "]"
    return '"' + "x" * (65_536 - rng.randrange(6)) + '"'


def mutate(rng: random.Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            data.insert(at, rng.choice(PIECES))
        elif kind == 1:
            del data[at : at + 1]
        elif kind == 2:
            data[at : at + 1] = bytes([rng.choice(PIECES)])
        elif kind == 3:
            del data[at:]
        else:
            data[at:at] = data[rng.randrange(len(data) + 1) :][:20]
    return bytes(data)


def require_speedups() -> Speedups:
    if SPEEDUPS is None:
        raise RuntimeError(f"there is nothing to compare: the compiled helper is {STATUS}")
    return SPEEDUPS


def check_json(body: bytes) -> bool:
    """True if the helper gave the text. It must be that of the definition; where that refuses, it gives none."""
    given = require_speedups().canonicalize_json(body)
    try:
        defined = canonicalize_json(body)
    except (ValueError, RecursionError):
        defined = None
    assert given is None or given == defined, f"the helper gave {given!r}, the definition {defined!r}"
    return given is not None


class Text(str):
    """A subclass: the helper leaves it to the definition."""

    __slots__ = ()


LAYOUTS = (Layout(), Layout("a:", 256))
TEXTS = ("", "key", "order-7", "é", "ключ", "😀", "\ud800", "\0", "\r\n$3\r\n", "%b%d", "x" * 300, Text("sub"))
BYTES = (b"", b"t" * 16, b"\0\xff\r\n", b"*3\r\n$7\r\n", bytes(range(256)))
TIMES = (0, 1, -1, 60_000_000, 2**31, 2**53, 2**63 - 1, -(2**63), 2**63, 10**30, True)
STATUSES = (200, 201, 0, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, True)
NAMES = ("content-type", "x-é", "set-cookie", "", "\udcff", "a" * 200)


def generate_ops(rng: random.Random) -> Iterator[Claim | Complete]:
    def text() -> str:
        return rng.choice(TEXTS[:6] if rng.random() < 0.9 else TEXTS)

    def number(values: tuple[int, ...]) -> int:
        return rng.choice(values[:6] if rng.random() < 0.9 else values)

    def now() -> int | None:
        return rng.choice((None, None, number(TIMES)))

    def fingerprint() -> Fingerprint:
        return Fingerprint(text(), rng.choice(BYTES), number(TIMES))

    while True:
        record_id = rng.randbytes(32)
        if rng.random() < 0.5:
            headers = tuple((rng.choice(NAMES), text()) for _ in range(rng.choice((0, 1, 2, 3, 64, 65))))
            gone: Any = rng.choice(("", "", "too_large", "x" * 255, "x" * 256))
            answer = Answer.from_parts(number(STATUSES), rng.choice(BYTES), headers, gone)
            yield Complete(record_id, Fence(number(TIMES), rng.choice(BYTES)), answer, now())
            continue
        lapse: Any = rng.choice(("uncertain", "resume", "rerun"))
        words = [text() for _ in range(5)]
        others = (fingerprint(),) if rng.random() < 0.1 else ()
        resumes = b"run" if rng.random() < 0.1 else b""
        fixed = (fingerprint(), rng.choice(BYTES), rng.choice(BYTES), number(TIMES), number(TIMES), lapse)
        yield Claim(record_id, *words, *fixed, rng.choice(BYTES), now(), others, resumes)


def check_packing(op: Claim | Complete) -> bool:
    """True if the operation can be packed. With and without the helper it is the same bytes, or the same error."""
    packers = build_packers(require_speedups())
    for layout in LAYOUTS:
        given, defined = (pack_or_error(each[type(op)], op, layout) for each in (packers, packing.PACKERS))
        assert given == defined, f"the helper gave {given!r}, the definition {defined!r}"
    return not isinstance(given, str)


def pack_or_error(pack: Callable[[Any, Layout], packing.PackedOp], op: Any, layout: Layout) -> packing.PackedOp | str:
    try:
        return pack(op, layout)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


TARGETS: dict[str, tuple[Callable[[random.Random], Iterator[Any]], Callable[[Any], bool]]] = {
    "speedups-json": (generate_json, check_json),
    "speedups-packing": (generate_ops, check_packing),
}
