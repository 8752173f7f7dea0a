"""An answer on its way into the store, and on its way out again.

The first client gets every header the application set. What is kept for the others leaves out what belongs to one
response only: cookies, credentials, dates, request ids, rate limits, and what describes a connection.
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
"""Headers that are not kept; `*` at the end stands for any rest. An option of the middleware replaces the list."""

NEVER_STORED = frozenset({401, 407, 408, 425, 429})
"""Answers about this attempt and not about the request: kept, a fresh token would still be told "expired"."""

BODILESS = frozenset({204, 304})
REPLAYED = ("idempotent-replayed", "true")
NO_STORE = ("cache-control", "no-store")

MAX_REMEMBERED_NAMES = 1_000
"""Header names; so many that no application has more, and so few that nobody fills the memory with them."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_EVENTS = re.compile(r"\s*text/event-stream\s*(;|$)", re.IGNORECASE)
_DIRECTIVE = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*"?)+')  # a comma between quotes is no end
_BAD_VALUE = re.compile(r"[\r\n\0]")


class Response(NamedTuple):
    """A whole answer, ready to be sent: header names and values as latin-1 text."""

    status: int
    headers: HeaderPairs
    body: bytes

    @classmethod
    def build(cls, status: int, headers: HeaderPairs, body: bytes) -> Response:
        return cls(status, (*headers, ("content-length", str(len(body)))), body)

    def with_headers(self, *headers: tuple[str, str]) -> Response:
        return self._replace(headers=(*self.headers, *headers))


class DroppedHeaders:
    """The list of headers that are not kept."""

    def __init__(self, names: Iterable[str]) -> None:
        lowered = [name.lower() for name in names]
        for name in lowered:
            if not _NAME.fullmatch(name):
                raise UsageError(f"dropped={name!r} is not a header name; write one, or a beginning with * behind it")
        self._names = frozenset(name for name in lowered if not name.endswith("*"))
        self._beginnings = tuple(name[:-1] for name in lowered if name.endswith("*"))
        self._known: dict[str, bool] = {}

    def __contains__(self, name: str) -> bool:
        """Remembered: an application sets the same few headers in every answer."""
        known = self._known.get(name)
        if known is None:
            lowered = name.lower()
            known = lowered in self._names or lowered.startswith(self._beginnings)
            if len(self._known) < MAX_REMEMBERED_NAMES:
                self._known[name] = known
        return known

    def filter_headers(self, headers: HeaderPairs) -> list[tuple[str, str]]:
        return [(name, value) for name, value in headers if name not in self]


@lru_cache(MAX_REMEMBERED_NAMES)
def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


class BadHeader(ValueError):
    """The application set a header that would let one answer become two."""


def check_headers(headers: HeaderPairs) -> HeaderPairs:
    """Refuse a header the wire could not carry, before it is stored."""
    for name, value in headers:
        if _BAD_VALUE.search(value) or not _is_name(name):
            raise BadHeader(
                f"the application set the header {name!r} with a line break or a bad name; nothing was sent"
            )
    return headers


def build_stored_answer(status: int, headers: HeaderPairs, body: bytes, dropped: DroppedHeaders) -> Answer:
    return Answer(status, body, dropped.filter_headers(headers))


def build_replay(record: Record, *, at_original_url: bool = True) -> Response:
    """The stored answer as it goes out again. What could not have been stored by us is refused, not sent."""
    answer = record.answer
    assert answer is not None, "a completed record has an answer"
    if not isinstance(answer.status, int) or not 200 <= answer.status <= 599:
        raise CorruptRecord(record.id, f"its status is {answer.status!r}")
    for name, value in answer.headers:
        if not isinstance(value, str) or not _is_name(name) or _BAD_VALUE.search(value):
            raise CorruptRecord(record.id, "a header of its answer holds a line break or a bad name")
        if not (value.isascii() or _is_latin1(value)):
            raise CorruptRecord(record.id, "a header of its answer cannot be sent")
    kept = [
        (name, value) for name, value in without_shared_caching(answer.headers) if name.lower() not in _REPLACED_HEADERS
    ]
    if not at_original_url:
        kept = [pair for pair in kept if pair[0].lower() != "cache-control"] + [NO_STORE]
    if answer.status not in BODILESS:
        kept.append(("content-length", str(len(answer.body))))
    return Response(answer.status, (*kept, REPLAYED), answer.body)


_REPLACED_HEADERS = frozenset({"content-length", "transfer-encoding", "idempotent-replayed"})


def without_shared_caching(headers: HeaderPairs) -> list[tuple[str, str]]:
    """The headers of a replay, which no shared cache may keep for others. What the application said about caching
    stays where it forbids that itself (docs/decisions/0060-caching-of-replays.md)."""
    said = [value for name, value in headers if name.lower() == "cache-control"]
    private = _is_private(said)
    kept = [(name, value) for name, value in headers if not _is_for_caches(name.lower(), private)]
    return kept if private else [*kept, NO_STORE]


def _is_for_caches(name: str, private: bool) -> bool:
    # A CDN obeys a header of its own kind before Cache-Control (RFC 9213).
    return (
        name == "surrogate-control" or name.endswith("cdn-cache-control") or (name == "cache-control" and not private)
    )


def _is_private(lines: Iterable[str]) -> bool:
    """Whether these lines of Cache-Control keep an answer out of shared caches. `private="x"` does that for one header
    only, and `must-understand` takes `no-store` back."""
    said = {part.strip().lower() for line in lines for part in _DIRECTIVE.findall(line)}
    return "private" in said or ("no-store" in said and "must-understand" not in said)


def _is_latin1(value: str) -> bool:
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def is_stream(headers: HeaderPairs) -> bool:
    """Server-sent events have no end to wait for."""
    return any(_EVENTS.match(value) for name, value in headers if name.lower() == "content-type")


class AnswerBuffer:
    """The pieces of an answer, as they came, up to a limit."""

    __slots__ = ("_limit", "chunks", "size")

    def __init__(self, limit: int) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self._limit = limit

    def add(self, chunk: bytes) -> bool:
        """False once the answer is larger than may be kept."""
        if chunk:
            self.chunks.append(chunk)
            self.size += len(chunk)
        return self.size <= self._limit

    def join(self) -> bytes:
        return self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)
