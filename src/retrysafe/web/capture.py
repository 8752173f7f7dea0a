"""What is stored of an answer, and the replay that is built from it.

The first client gets every header that the application set. The stored answer leaves out headers that belong to one
response only: cookies, credentials, dates, request ids, rate limits, and headers about the connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from retrysafe.core.records import Answer, Record
from retrysafe.errors import CorruptRecord, UsageError

HeaderPairs = Sequence[tuple[str, str]]

DROPPED = (
    "set-cookie", "set-cookie2", "clear-site-data",
    "authorization", "www-authenticate", "authentication-info", "proxy-*",
    "date", "server", "age", "via", "alt-svc", "server-timing", "x-runtime", "x-response-time", "x-process-time",
    "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length",
    "ratelimit", "ratelimit-*", "x-ratelimit-*", "x-rate-limit-*",
    "request-id", "x-request-id", "correlation-id", "x-correlation-id", "x-amzn-requestid", "x-amzn-trace-id",
    "x-cloud-trace-context", "cf-ray", "traceparent", "tracestate", "traceresponse", "baggage", "b3", "x-b3-*",
    "idempotency-key", "idempotent-replayed",
)  # fmt: skip
"""Headers that are not stored; `*` at the end matches any rest. The middleware's option `dropped` replaces the list."""

NEVER_STORED = frozenset({401, 407, 408, 425, 429})
"""Statuses that are about this attempt and not about the request. A stored 401, for example, would answer "expired"
even to a new token."""

BODILESS = frozenset({204, 304})
"""Statuses without a body and without `Content-Length`."""
REPLAYED_HEADER = "Idempotent-Replayed"
_REPLAYED = (REPLAYED_HEADER.lower(), "true")
NO_STORE = ("cache-control", "no-store")

MAX_REMEMBERED_NAMES = 1_000
"""How many header names are cached: more than any application sets, few enough to bound the memory."""

MAX_REMEMBERED_ANSWERS = 128
"""For how many sets of stored headers the headers of their replay are cached."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_EVENTS = re.compile(r"\s*text/event-stream\s*(;|$)", re.IGNORECASE)
_DIRECTIVE = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*"?)+')  # a comma between quotes does not end it
_BAD_VALUE = re.compile(r"[\r\n\0]")


class Response(NamedTuple):
    """A whole answer, ready to be sent. Header names and values are latin-1 text."""

    status: int
    headers: HeaderPairs
    body: bytes

    @classmethod
    def build(cls, status: int, headers: HeaderPairs, body: bytes) -> Response:
        return cls(status, (*headers, ("content-length", str(len(body)))), body)

    def with_headers(self, *headers: tuple[str, str]) -> Response:
        return self._replace(headers=(*self.headers, *headers))

    def as_replay(self) -> Response:
        return self._replace(headers=build_replay_headers(self.headers))


class DroppedHeaders:
    """The set of headers that are not stored."""

    def __init__(self, names: Iterable[str]) -> None:
        lowered = [name.lower() for name in names]
        for name in lowered:
            if not _NAME.fullmatch(name):
                raise UsageError(f"dropped={name!r} is not a header name; write one, or a prefix followed by *")
        self._names = frozenset(name for name in lowered if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in lowered if name.endswith("*"))
        self._known: dict[str, bool] = {}

    def __contains__(self, name: str) -> bool:
        """The result is cached: an application sets the same few headers in every answer."""
        known = self._known.get(name)
        if known is None:
            lowered = name.lower()
            known = lowered in self._names or lowered.startswith(self._prefixes)
            if len(self._known) < MAX_REMEMBERED_NAMES:
                self._known[name] = known
        return known

    def filter_headers(self, headers: HeaderPairs) -> list[tuple[str, str]]:
        known, kept = self._known, []
        for pair in headers:
            dropped = known.get(pair[0])
            if not (pair[0] in self if dropped is None else dropped):
                kept.append(pair)
        return kept


@lru_cache(MAX_REMEMBERED_NAMES)
def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


class BadHeader(ValueError):
    """The application set a header that would split one response into two."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the application set the header {name!r} with a line break or a bad name; nothing was sent")


def check_headers(headers: HeaderPairs) -> HeaderPairs:
    """Refuse headers that cannot be sent, before the answer is stored. An application may have lists for pairs."""
    for name, value in headers:
        if _BAD_VALUE.search(value) or not _is_name(name):
            raise BadHeader(name)
    return [(name, value) for name, value in headers]


def read_raw_headers(raw: Iterable[tuple[bytes, bytes]]) -> tuple[HeaderPairs, bool]:
    """The headers of an ASGI answer as text, checked; and whether it is a stream (`is_stream`)."""
    headers, stream = [], False
    for name, value in raw:
        known = _read_name(name)
        text = value.decode("latin-1")
        if known is None or "\n" in text or "\r" in text or "\0" in text:
            raise BadHeader(name.decode("latin-1"))
        if known[1]:
            stream = stream or _is_events(text)
        headers.append((known[0], text))
    return headers, stream


@lru_cache(MAX_REMEMBERED_ANSWERS)
def _is_events(content_type: str) -> bool:
    return _EVENTS.match(content_type) is not None


@lru_cache(MAX_REMEMBERED_NAMES)
def _read_name(name: bytes) -> tuple[str, bool] | None:
    """A header's name as text, and whether it is `content-type`; None if it cannot be sent."""
    text = name.decode("latin-1")
    return (text, text.lower() == "content-type") if _is_name(text) else None


def build_stored_answer(status: int, headers: HeaderPairs, body: bytes, dropped: DroppedHeaders) -> Answer:
    return Answer.from_parts(status, body, tuple(dropped.filter_headers(headers)))


def build_replay(record: Record, *, at_original_url: bool = True) -> Response:
    """The replay of a stored answer. Raises CorruptRecord for an answer that we could not have stored."""
    answer = record.answer
    assert answer is not None, "a completed record has an answer"
    if not isinstance(answer.status, int) or not 200 <= answer.status <= 599:
        raise CorruptRecord(record.id, f"its status is {answer.status!r}")
    try:
        headers = _prepare_replay_headers(answer.headers, at_original_url)
    except ValueError as damage:
        raise CorruptRecord(record.id, str(damage)) from None
    if answer.status not in BODILESS:
        headers = (("content-length", str(len(answer.body))), *headers)
    return Response(answer.status, headers, answer.body)


@lru_cache(MAX_REMEMBERED_ANSWERS)
def _prepare_replay_headers(stored: HeaderPairs, at_original_url: bool) -> HeaderPairs:
    """The headers of a replay, except its length. Cached: most answers of an application have the same headers. Raises
    ValueError if they cannot be sent."""
    for name, value in stored:
        if not isinstance(value, str) or not _is_name(name) or _BAD_VALUE.search(value):
            raise ValueError("a header of its answer holds a line break or a bad name")
        if not (value.isascii() or _is_latin1(value)):
            raise ValueError("a header of its answer cannot be sent")
    kept = [(name, value) for name, value in stored if name.lower() not in _FRAMING_HEADERS]
    if not at_original_url:
        kept = [pair for pair in kept if pair[0].lower() != "cache-control"]
    return build_replay_headers(kept)


_FRAMING_HEADERS = frozenset({"content-length", "transfer-encoding"})


def build_replay_headers(headers: HeaderPairs) -> HeaderPairs:
    """The headers of a replay: those of the stored answer, `Idempotent-Replayed: true`, and no shared caching.

    This is the only place that says what is sent with a replay.
    """
    kept = [(name, value) for name, value in without_shared_caching(headers) if name.lower() != _REPLAYED[0]]
    return (*kept, _REPLAYED)


def without_shared_caching(headers: HeaderPairs) -> list[tuple[str, str]]:
    """The headers with shared caches forbidden: a cache would give one client's answer to others. The application's own
    `Cache-Control` stays if it forbids that itself (docs/decisions/0060-caching-of-replays.md)."""
    directives = [value for name, value in headers if name.lower() == "cache-control"]
    private = _is_private(directives)
    kept = [(name, value) for name, value in headers if not _is_for_caches(name.lower(), private)]
    return kept if private else [*kept, NO_STORE]


_OF_ONE_CACHE = frozenset({"x-accel-expires", "edge-control"})


def _is_for_caches(name: str, private: bool) -> bool:
    # Caches obey headers of their own before Cache-Control (RFC 9213; nginx, Akamai, Fastly).
    own = name in _OF_ONE_CACHE or name.endswith(("cdn-cache-control", "surrogate-control"))
    return own or (name == "cache-control" and not private)


def _is_private(lines: Iterable[str]) -> bool:
    """True if these `Cache-Control` lines keep an answer out of shared caches. `private="x"` does that for one header
    only, and `must-understand` overrides `no-store`."""
    directives = {part.strip().lower() for line in lines for part in _DIRECTIVE.findall(line)}
    return "private" in directives or ("no-store" in directives and "must-understand" not in directives)


def _is_latin1(value: str) -> bool:
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def is_stream(headers: HeaderPairs) -> bool:
    """True for server-sent events: such an answer may never end."""
    return any(_EVENTS.match(value) for name, value in headers if name.lower() == "content-type")


class AnswerBuffer:
    """The chunks of an answer, up to a limit."""

    __slots__ = ("_limit", "chunks", "size")

    def __init__(self, limit: int) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self._limit = limit

    def add(self, chunk: bytes) -> bool:
        """Add a chunk. False once the answer is larger than the limit. Applications also send views of memory, and
        buffers that they fill again: what is stored and sent is a copy."""
        if chunk:
            if type(chunk) is not bytes:
                chunk = memoryview(chunk).tobytes()  # TypeError for text, before anything is stored
            self.chunks.append(chunk)
            self.size += len(chunk)
        return self.size <= self._limit

    def join(self) -> bytes:
        return self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)
