"""Fingerprints: a request or a call as a digest of its canonical form.

Two bodies that mean the same must agree: key order, white space and escapes of JSON, the order of different form
fields, and the random boundary of multipart do not count. Two bodies that may mean something different must not agree:
`1` and `1.0`, 2⁶⁴ and 2⁶⁴+1, `{"a":1,"a":2}` and `{"a":2}`. So the canonical JSON is not RFC 8785 (JCS), which
makes one number of `1` and `1.0` and a double of a large integer. A body that cannot be parsed is hashed as raw
bytes: making a fingerprint never fails.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NoReturn

from retrysafe.core.keys import frame
from retrysafe.core.records import Fingerprint
from retrysafe.core.speedups import SPEEDUPS, Speedups

CANONICAL_LIMIT_BYTES = 64 * 1024
"""Above this a body is hashed raw: parsing blocks the event loop for milliseconds per megabyte."""

MAX_FORM_FIELDS = 10_000

MAX_CACHED_CHARS = 256
"""Longer paths and queries are not kept: clients choose them."""


def fingerprint_http(method: str, path: str, query: str, content_type: str, body: Iterable[bytes]) -> Fingerprint:
    """The fingerprint of an HTTP request. Headers are left out: authentication and tracing change on a retry."""
    algorithm, digest, length = digest_body(content_type, body if isinstance(body, list) else list(body))
    begin = _hash_head_cached if len(path) + len(query) <= MAX_CACHED_CHARS else _hash_head
    whole = begin(method, path, query, content_type, algorithm).copy()
    whole.update(_DIGEST_LENGTH + digest)  # the frame of the last part
    return Fingerprint("http-" + algorithm, whole.digest(), length)


def _hash_head(method: str, path: str, query: str, content_type: str, algorithm: str) -> hashlib._Hash:
    """The digest of all that precedes the body. Requests to one path share it."""
    return hashlib.sha256(frame(method.upper(), path, query, _parse_media_type(content_type)[0], algorithm))


_hash_head_cached = lru_cache(256)(_hash_head)


def fingerprint_body(content_type: str, chunks: list[bytes]) -> Fingerprint:
    """The fingerprint of a body alone; canonical where its media type has a canonical form."""
    return Fingerprint(*digest_body(content_type, chunks))


def digest_body(content_type: str, chunks: list[bytes]) -> tuple[str, bytes, int]:
    """The parts of a body's fingerprint: algorithm, digest, length."""
    length = len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks))
    _, family = _parse_media_type(content_type)
    canonical = _CANONICALIZERS.get(family)
    if canonical is not None and 0 < length <= CANONICAL_LIMIT_BYTES:
        try:
            text = canonical(b"".join(chunks), content_type)  # one chunk of bytes is not copied
        except (ValueError, RecursionError, OverflowError):
            pass  # the body does not fit its content type: hashed as raw bytes
        else:
            return _ALGORITHMS[family], hashlib.sha256(text).digest(), len(text)
    raw = hashlib.sha256()
    for chunk in chunks:
        raw.update(chunk)
    return "raw1", raw.digest(), length


def fingerprint_text(algorithm: str, text: str) -> Fingerprint:
    data = text.encode("utf-8", "surrogatepass")
    return Fingerprint(algorithm, hashlib.sha256(data).digest(), len(data))


def media_type(content_type: str) -> str:
    """`Application/JSON; charset=utf-8` gives `application/json`: parameters are not part of the request's meaning."""
    return content_type.partition(";")[0].strip().lower()


@lru_cache(64)
def _parse_media_type(content_type: str) -> tuple[str, str]:
    """The media type, and the family whose canonical form it has. Cached: clients send the same few types."""
    media = media_type(content_type)
    return media, _canonical_family(media)


def _canonical_family(media: str) -> str:
    if media == "application/json" or media.endswith("+json"):
        return "json"
    if media == "application/x-www-form-urlencoded":
        return "form"
    return "multipart" if media == "multipart/form-data" else "raw"


def canonicalize_json(body: bytes, content_type: str = "") -> bytes:
    """One text for all spellings of the same JSON value. Raises ValueError if the body is not strict JSON in UTF-8.

    Numbers with a point or exponent keep their literal, and objects with a repeated key keep all their pairs.
    Both are written as an object with one key that starts with NUL; real keys with that prefix are escaped.
    """
    text = body.decode().strip(_JSON_SPACE)
    # The careful reader is slower, and needed only for bodies that contain one of these two texts.
    read = _read_carefully if "-0" in text or "\\u0000" in text else _read
    try:
        found, end = read(text, 0)
    except StopIteration:
        raise ValueError("there is no JSON value") from None
    if end != len(text):
        raise ValueError("something follows the JSON value")
    return "".join(_write(found, 0)).encode()


def build_json_canonicalizer(speedups: Speedups | None) -> Callable[[bytes, str], bytes]:
    """`canonicalize_json`, with the compiled helper in front where it is installed. It gives the same bytes, or None
    for a body that it leaves to the definition; tests/unit/core/test_speedups.py compares them."""
    if speedups is None:
        return canonicalize_json
    compiled = speedups.canonicalize_json

    def canonicalize(body: bytes, content_type: str) -> bytes:
        text = compiled(body)
        return canonicalize_json(body) if text is None else text

    return canonicalize


def _wrap_literal(text: str) -> dict[str, str]:
    return {"\0n": text}


def _parse_integer(text: str) -> int | dict[str, str]:
    return _wrap_literal(text) if text == "-0" else int(text)  # `int` makes 0 of -0; other parsers tell them apart


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        return {"\0d": [[key, value] for key, value in sorted(pairs, key=lambda pair: pair[0])]}
    return found


def _build_careful_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = _build_object(pairs)
    if len(found) == len(pairs) and any(key.startswith("\0") for key, _ in pairs):
        return {"\0" + key if key.startswith("\0") else key: value for key, value in pairs}
    return found


# Made once: json.loads and json.dumps would make a decoder and an encoder for each request.
_JSON_SPACE = " \t\n\r"
_decoder: Any = json.JSONDecoder(
    parse_float=_wrap_literal, parse_constant=_refuse_constant, object_pairs_hook=_build_object
)
_careful_decoder: Any = json.JSONDecoder(
    parse_float=_wrap_literal,
    parse_int=_parse_integer,
    parse_constant=_refuse_constant,
    object_pairs_hook=_build_careful_object,
)
_read, _read_carefully = _decoder.scan_once, _careful_decoder.scan_once
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _build_writer() -> Callable[[Any, int], Iterable[str]]:
    """What `_encode` does, in pieces and without making an encoder for each text: CPython's own encoder in C, made
    once. It is not asked to find circles, because what was parsed has none; and it meets no floats, because they are
    kept as text."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return lambda value, _: (_encode(value),)
    write: Callable[[Any, int], Iterable[str]] = make(
        None, _refuse_value, json.encoder.encode_basestring_ascii, None, ":", ",", True, False, False
    )
    return write


def _refuse_value(value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} is not JSON")


_write = _build_writer()


def canonicalize_form(body: bytes, content_type: str = "") -> bytes:
    """Fields sorted by name. The values of one name keep their order, which may have a meaning."""
    from urllib.parse import parse_qsl  # slow to import, and only forms need it

    pairs = parse_qsl(
        body.decode("ascii"),
        keep_blank_values=True,
        strict_parsing=True,
        errors="surrogateescape",
        max_num_fields=MAX_FORM_FIELDS,
    )
    return json.dumps(sorted(pairs, key=lambda pair: pair[0]), separators=(",", ":")).encode()


def canonicalize_multipart(body: bytes, content_type: str) -> bytes:
    """The parts in their order, without the boundary, which a client draws anew for each attempt. This splits the body;
    it is not a full parser."""
    boundary = _parse_boundary(content_type)
    delimiter = b"\r\n--" + boundary
    pieces = (b"\r\n" + body).split(delimiter)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise ValueError("the multipart body is not closed by its boundary")
    parts = []
    for piece in pieces[1:-1]:
        # If the line does not end after the boundary, it is another, longer boundary: content, not a new part.
        if not piece.startswith(b"\r\n"):
            raise ValueError("a boundary of the multipart body does not end its line")
        head, separator, content = piece.partition(b"\r\n\r\n")
        if not separator:
            raise ValueError("a part of the multipart body has no header end")
        parts.append(frame(head, content))
    return frame(*parts)


def has_one_reading(content_type: str, chunks: list[bytes]) -> bool:
    """Whether all parsers read this body alike. With two boundaries, one parser skips as an epilogue what another reads
    as content. So it is with a boundary after a bare line feed, which some parsers take for one, and with what stands
    before the first boundary or after the last."""
    if _parse_media_type(content_type)[1] != "multipart":
        return True
    names = [parameter.partition("=")[0].strip().lower() for parameter in content_type.split(";")[1:]]
    if sum(name == "boundary" or name.startswith("boundary*") for name in names) > 1:
        return False
    if not 0 < sum(map(len, chunks)) <= CANONICAL_LIMIT_BYTES:
        return True  # all its bytes are compared
    try:
        boundary = b"--" + _parse_boundary(content_type)
    except ValueError:
        return True
    body = b"".join((b"\r\n", *chunks))
    pieces = body.split(b"\r\n" + boundary)
    nothing_skipped = pieces[0] in (b"", b"\r\n") and pieces[-1] in (b"--", b"--\r\n")
    return nothing_skipped and body.count(boundary) == len(pieces) - 1


def _parse_boundary(content_type: str) -> bytes:
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "boundary" and value.strip('"'):
            return value.strip('"').encode("latin-1")
    raise ValueError("the content type names no boundary")


_DIGEST_LENGTH = struct.pack(">I", hashlib.sha256().digest_size)
_ALGORITHMS = {"json": "json1", "form": "form1", "multipart": "multipart1"}
_CANONICALIZERS: dict[str, Callable[[bytes, str], bytes]] = {
    "json": build_json_canonicalizer(SPEEDUPS),
    "form": canonicalize_form,
    "multipart": canonicalize_multipart,
}
