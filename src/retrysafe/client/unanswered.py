"""A request object is one operation until it is answered.

Whoever sends a request object again after an answer means a second operation: it gets a new key. Whoever sends it
again because there was no answer (the connection broke, the wait was cancelled, the retries were used up) means the
same operation: it gets the same key. The request object itself is never changed, so this is where it is remembered,
for as long as somebody else holds the request.

A request that follows a redirect is built by httpx or requests from the first one, and belongs to the same operation:

    the same host        the same key
    another host         a key derived from it: that host never sees the first one, and still recognises a repetition
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple

from retrysafe.client.operation import Identity, current_names, identify, rotate_key
from retrysafe.core.keys import derive


class Destination(NamedTuple):
    """Where a request goes."""

    scheme: str
    host: str
    port: int | None
    path: str

    @property
    def authority(self) -> str:
        port = self.port or {"http": 80, "https": 443}.get(self.scheme)
        return f"{self.host}:{port}"


def same_host(first: Destination, second: Destination) -> bool:
    """The same server, or the same name with TLS after it went without."""
    if first.authority == second.authority:
        return True
    upgraded = (first.scheme, second.scheme) == ("http", "https") and first.host == second.host
    return upgraded and first.authority.endswith(":80") and second.authority.endswith(":443")


class UnansweredOperation(NamedTuple):
    """An operation that was sent and not answered: as it began, however many redirects it has followed since."""

    identity: Identity
    rotations: int
    method: str
    destination: Destination
    around: tuple[str, ...]
    """The names of the operations it was sent in: inside of another one it is another operation."""


def begin_operation(
    method: str, place: Destination, given: str | None, token: Callable[[], str]
) -> UnansweredOperation:
    identity = identify(method, place.host, place.path, given, token)
    return UnansweredOperation(identity, 0, method, place, current_names())


def continue_operation(
    pending: UnansweredOperation | None, method: str, place: Destination, given: str | None
) -> tuple[Identity, int] | None:
    """Who a request of an unanswered operation is, and how often its key was exchanged; None: it is a new one."""
    if pending is None or pending.around != current_names() or pending.method != method:
        return None
    first = pending.identity
    key = rotate_key(first.key, pending.rotations)
    if given not in (None, first.key, key):
        return None
    if pending.destination == place:
        return first, pending.rotations
    step = f"{method} {place.path}"
    if not same_host(pending.destination, place):
        key = derive(key, place.authority, "redirect", part="host")
    id = derive(key, place.host, step, part="redirect")
    return Identity(id, key, first.operation, f"{method} {place.host}{place.path}", own=False), 0


# Where it is remembered -------------------------------------------------------------------------


class UnansweredByStream:
    """httpx: a request that follows a redirect has the stream of the one that was redirected. A stream of the user's
    own making that cannot be referred to weakly is not remembered: each time it is sent it is a new operation."""

    def __init__(self) -> None:
        self._known: MutableMapping[Any, UnansweredOperation] = weakref.WeakKeyDictionary()

    def find(self, stream: Any) -> UnansweredOperation | None:
        try:
            return self._known.get(stream)
        except TypeError:
            return None

    def remember(self, stream: Any, pending: UnansweredOperation | None) -> None:
        with suppress(TypeError):
            if pending is None:
                self._known.pop(stream, None)
            else:
                self._known[stream] = pending


class UnansweredByHooks:
    """requests: a copy of a prepared request has the hooks of the first. They are a dictionary, so they are found by
    their address, which is theirs for as long as the request that we saw them in is alive.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], UnansweredOperation]] = {}

    def find(self, request: Any) -> UnansweredOperation | None:
        owner, pending = self._known.get(id(request.hooks), (None, None))
        first = owner() if owner is not None else None
        return pending if first is not None and first.hooks is request.hooks else None

    def remember(self, request: Any, pending: UnansweredOperation | None) -> None:
        here = id(request.hooks)
        if pending is None:
            self._known.pop(here, None)
            return
        owner, _ = self._known.get(here, (None, None))
        first = owner() if owner is not None else None
        if first is None or first.hooks is not request.hooks:
            owner = weakref.ref(request, lambda gone: self._forget(here, gone))
        assert owner is not None
        self._known[here] = (owner, pending)

    def _forget(self, here: int, gone: weakref.ref[Any]) -> None:
        if self._known.get(here, (None,))[0] is gone:
            self._known.pop(here, None)
