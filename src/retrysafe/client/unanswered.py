"""Remember request objects that were sent and not answered, with their keys.

If the caller sends a request object again after an answer, it is a second operation and gets a new key. If the caller
sends it again because there was no answer (the connection broke, the wait was cancelled, the retries were used up), it
is the same operation and gets the same key. The request object itself is never changed, so the key is remembered here,
for as long as the caller holds the request.

httpx and requests build the request that follows a redirect from the first one. It belongs to the same operation:

    the same host        the same key
    another host         a key derived from it: that host does not learn the first key, and still recognises a retry
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple

from retrysafe.client.operation import Identity, current_names, identify, rotate_key
from retrysafe.core.keys import derive


class Destination(NamedTuple):
    """The target of a request."""

    scheme: str
    host: str
    port: int | None
    path: str

    @property
    def authority(self) -> str:
        port = self.port or {"http": 80, "https": 443}.get(self.scheme)
        return f"{self.host}:{port}"


def is_same_host(first: Destination, second: Destination) -> bool:
    """True if both are the same server, or the second is the same host after an upgrade from HTTP to HTTPS."""
    if first.authority == second.authority:
        return True
    upgraded = (first.scheme, second.scheme) == ("http", "https") and first.host == second.host
    return upgraded and first.authority.endswith(":80") and second.authority.endswith(":443")


class UnansweredOperation(NamedTuple):
    """An operation that was sent and not answered, as it was before any redirect."""

    identity: Identity
    rotations: int
    method: str
    destination: Destination
    operation_names: tuple[str, ...]
    """The operations that were entered when it was sent. In another operation the same request is another call."""


def begin_operation(
    method: str, destination: Destination, given: str | None, token: Callable[[], str]
) -> UnansweredOperation:
    identity = identify(method, destination.host, destination.path, given, token)
    return UnansweredOperation(identity, 0, method, destination, current_names())


def continue_operation(
    pending: UnansweredOperation | None, method: str, target: Destination, given: str | None
) -> tuple[Identity, int] | None:
    """The identity of a request that continues an unanswered operation, and how often its key was rotated. None if the
    request is a new operation."""
    if pending is None or pending.operation_names != current_names() or pending.method != method:
        return None
    first = pending.identity
    key = rotate_key(first.key, pending.rotations)
    if given not in (None, first.key, key):
        return None
    if pending.destination == target:
        return first, pending.rotations
    step = f"{method} {target.path}"
    if not is_same_host(pending.destination, target):
        key = derive(key, target.authority, "redirect", part="host")
    id = derive(key, target.host, step, part="redirect")
    return Identity(id, key, first.operation, f"{method} {target.host}{target.path}", own=False), 0


# One memory for each library --------------------------------------------------------------------


class UnansweredByStream:
    """For httpx: a request that follows a redirect has the same stream as the first one. A stream class of the user's
    that does not allow weak references is not remembered: each time it is sent, it is a new operation."""

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
    """For requests: a copy of a prepared request has the same `hooks` dictionary as the first one. A dictionary allows
    no weak reference, so it is found by its id(), which is unique for as long as the first request is alive.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], UnansweredOperation]] = {}

    def find(self, request: Any) -> UnansweredOperation | None:
        owner, pending = self._known.get(id(request.hooks), (None, None))
        first = owner() if owner is not None else None
        return pending if first is not None and first.hooks is request.hooks else None

    def remember(self, request: Any, pending: UnansweredOperation | None) -> None:
        address = id(request.hooks)
        if pending is None:
            self._known.pop(address, None)
            return
        owner, _ = self._known.get(address, (None, None))
        first = owner() if owner is not None else None
        if first is None or first.hooks is not request.hooks:
            owner = weakref.ref(request, lambda dead: self._forget(address, dead))
        assert owner is not None
        self._known[address] = (owner, pending)

    def _forget(self, address: int, dead: weakref.ref[Any]) -> None:
        if self._known.get(address, (None,))[0] is dead:
            self._known.pop(address, None)
