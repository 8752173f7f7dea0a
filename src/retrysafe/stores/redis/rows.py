"""Converts a record to the Redis hash that stores it, and back. The fields of the hash are packed.

    h    the head, all that the scripts judge by and change: state, on_lapse, whether there is a point and a note,
         attempt, lease_until, created, started, completed, expires, retention; then the token
    b    what is fixed at creation: fingerprint, namespace, kind, scope, key, target, run
    i    the input                          if there is one
    p    the recovery point and progress    once the record advanced
    n    the note                           if there is one
    a    the answer                         once there is one
    q    the number of advances             once this attempt advanced, or its owner gave up
    e    the tokens of ended attempts       once there are any; each after its length in one byte. A released record
                                            has its own token in front

Numbers are big-endian and of fixed size, other values are bytes after their sizes. So Lua's `struct` reads what
Python's `struct` wrote. Text is UTF-8, lone surrogates included, because an error message may quote any text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct, error, pack, unpack_from
from typing import Any, get_args

from retrysafe.core.ops import Claim
from retrysafe.core.records import Answer, Fingerprint, Gone, Headers, Record, read_past_tokens
from retrysafe.errors import CorruptRecord
from retrysafe.stores.redis.layout import LAPSE_CODES, STATE_CODES

MAX_REMEMBERED_HEADERS = 128
MAX_REMEMBERED_OWNERS = 1_024

BORN_PARTS = ("fingerprint", "namespace", "kind", "scope", "key", "target", "run")
"""The parts of field `b`, in order. list.lua filters by their numbers."""

_HEAD = Struct(">BBBBi6q")
_BORN = Struct(">7I")
_POINT = _COUNT = Struct(">I")
_ANSWER = Struct(">iBI")  # status, size of gone, size of headers; then gone, headers and body

_STATES = {code: state for state, code in STATE_CODES.items()}
_ON_LAPSE = {code: on_lapse for on_lapse, code in LAPSE_CODES.items()}
_GONE = frozenset(get_args(Gone))


def encode_text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _decode_text(value: bytes) -> str:
    return str(value, "utf-8", "surrogatepass")


def encode_number(value: int) -> bytes:
    return b"%d" % value


def encode_born(op: Claim) -> bytes:
    """Field `b` for a claim that may create the record. Empty for a claim that only resumes."""
    if op.resumes:
        return b""
    algorithm, digest, length = op.fingerprint
    fingerprint = f"{algorithm}:{length}:{digest.hex()}".encode()  # str(op.fingerprint), without a call
    key, run = op.key.encode("utf-8", "surrogatepass"), op.run
    sizes, owner, target = _encode_shared(
        op.namespace, op.kind, op.scope, op.target, len(fingerprint), len(key), len(run)
    )
    return b"".join((sizes, fingerprint, owner, key, target, run))


@lru_cache(MAX_REMEMBERED_OWNERS)
def _encode_shared(  # noqa: PLR0917  (by position: every new key comes here)
    namespace: str, kind: str, scope: str, target: str, fingerprint: int, key: int, run: int
) -> tuple[bytes, bytes, bytes]:
    """What the claims of one scope and route share: all sizes (those of fingerprint, key and run are given), the parts
    between fingerprint and key, and the target."""
    words, named = [encode_text(word) for word in (namespace, kind, scope)], encode_text(target)
    sizes = _BORN.pack(fingerprint, *map(len, words), key, len(named), run)
    return sizes, b"".join(words), named


def encode_alternatives(op: Claim) -> bytes:
    """The other forms of a claim's fingerprint, each between two line feeds, or empty. A claim that resumes has no `b`,
    so all forms are here."""
    if not op.alternatives and not op.resumes:
        return b""
    forms = (op.fingerprint, *op.alternatives) if op.resumes else op.alternatives
    return "\n".join(["", *map(str, forms), ""]).encode()


def _encode_sized(words: Sequence[str]) -> tuple[Iterable[int], bytes]:
    """The sizes of the words in bytes, and the words joined."""
    joined = "".join(words)
    data = encode_text(joined)
    # The words are nearly always ASCII. Then their sizes in characters are their sizes in bytes.
    return map(len, words) if len(data) == len(joined) else [len(encode_text(word)) for word in words], data


def encode_point(point: str, progress: bytes) -> bytes:
    name = encode_text(point)
    return _POINT.pack(len(name)) + name + progress


def encode_answer(answer: Answer) -> bytes:
    """Field `a`. Two answers are equal exactly if their bytes are equal."""
    return _encode_head(answer.status, answer.gone, answer.headers) + answer.body


@lru_cache(MAX_REMEMBERED_HEADERS)
def _encode_head(status: int, gone: str, headers: Headers) -> bytes:
    """Field `a` without the body: of the headers the sizes of all names and values, then the names and values. JSON
    would take twice as long for a few headers. Cached, as in `_decode_headers`."""
    words = [word for pair in headers for word in pair]
    sizes, data = _encode_sized(words)
    size = _COUNT.size * (1 + len(words)) + len(data)
    numbers = _ANSWER.pack(status, len(gone), size) + gone.encode()
    return numbers + pack(f">I{len(words)}I", len(words), *sizes) + data


def read_record(record_id: bytes, found: Sequence[bytes]) -> Record:
    """Decode a record from the fields and values of HGETALL."""
    try:
        fields = iter(found)
        row = dict(zip(fields, fields, strict=True))
        return _decode_record(record_id, row, *_decode_born(row[b"b"]))
    except (ValueError, KeyError, TypeError, error) as damage:
        raise CorruptRecord(record_id, f"{type(damage).__name__}: {damage}") from damage


def read_met_record(op: Claim, found: Sequence[bytes], sent: bytes) -> Record:
    """The record that a claim met. For the same request its fixed fields are those that the claim has sent, except the
    run at their end. They need not be decoded then, which is half the work."""
    try:
        fields = iter(found)
        row = dict(zip(fields, fields, strict=True))
        born, size = row[b"b"], len(op.run)
        if sent and born[:-size] == sent[:-size]:
            words = (op.fingerprint, op.namespace, op.kind, op.scope, op.key, op.target)
            return _decode_record(op.id, row, words, born[-size:])
        return _decode_record(op.id, row, *_decode_born(born))
    except (ValueError, KeyError, TypeError, error) as damage:
        raise CorruptRecord(op.id, f"{type(damage).__name__}: {damage}") from damage


BornParts = tuple[Fingerprint, str, str, str, str, str]


def _decode_record(record_id: bytes, row: Mapping[bytes, bytes], born: BornParts, run: bytes) -> Record:
    head = row[b"h"]
    state, on_lapse, _, _, attempt, lease_until, created, started, completed, expires, retention = _HEAD.unpack_from(
        head
    )
    fingerprint, namespace, kind, scope, key, target = born
    point, progress = _decode_point(row[b"p"]) if b"p" in row else ("", b"")
    token = head[_HEAD.size :]
    answer = row.get(b"a")
    return Record._make(
        (
            record_id,
            namespace,
            kind,
            scope,
            key,
            target,
            fingerprint,
            _STATES[state],
            attempt,
            token,
            run,
            lease_until,
            _ON_LAPSE[on_lapse],
            point,
            progress,
            row.get(b"i", b""),
            None if answer is None else _decode_answer(answer),
            _decode_text(row[b"n"]) if b"n" in row else "",
            created,
            started,
            completed,
            expires,
            retention,
            int(row[b"q"]) if b"q" in row else 0,
            read_past_tokens(row[b"e"], token) if b"e" in row else (),
        )
    )


def _decode_born(data: bytes) -> tuple[BornParts, bytes]:
    *sizes, run = _BORN.unpack_from(data)
    end = len(data) - run
    fingerprint, namespace, kind, scope, key, target = _decode_texts(data[:end], sizes, _BORN.size)
    return (Fingerprint.parse(fingerprint), namespace, kind, scope, key, target), data[end:]


def _decode_point(data: bytes) -> tuple[str, bytes]:
    (size,) = _POINT.unpack_from(data)
    start = _POINT.size
    if len(data) < start + size:
        raise ValueError("its recovery point is cut off")
    return _decode_text(data[start : start + size]), data[start + size :]


def _decode_answer(data: bytes) -> Answer:
    status, gone_size, headers_size = _ANSWER.unpack_from(data)
    headers_start = _ANSWER.size + gone_size
    body_start = headers_start + headers_size
    if len(data) < body_start:
        raise ValueError("its answer is cut off")
    gone: Any = _decode_text(data[_ANSWER.size : headers_start]) if gone_size else ""
    if gone not in _GONE:
        raise ValueError(f"gone is {gone!r}")
    return Answer.from_parts(status, data[body_start:], _decode_headers(data[headers_start:body_start]), gone)


@lru_cache(MAX_REMEMBERED_HEADERS)
def _decode_headers(data: bytes) -> Headers:
    """Cached: the answers of an application mostly have the same headers."""
    (count,) = _COUNT.unpack_from(data)
    start = _COUNT.size * (1 + count)
    words = _decode_texts(data, unpack_from(f">{count}I", data, _COUNT.size), start)
    return tuple(zip(words[::2], words[1::2], strict=True))


def _decode_texts(data: bytes, sizes: Iterable[int], start: int) -> list[str]:
    """Split joined words by their sizes. They must end exactly at the end of the data."""
    words = []
    if data.isascii():  # nearly always: then one text is decoded, and sizes in bytes are sizes in characters
        text = data.decode("ascii")
        for size in sizes:
            words.append(text[start : start + size])
            start += size
    else:
        for size in sizes:
            words.append(_decode_text(data[start : start + size]))
            start += size
    if start != len(data):
        raise ValueError(f"{len(data)} bytes instead of {start}")
    return words
