"""The key of a call: one per logical operation, the same for every attempt.

    outside of an operation      a random key for each call
    in `with operation("x")`     derived from the name, the call (method, host, path) and its number among equal calls:
                                 the same after a restart, even if different calls come in another order
    a key the caller has set     that key

The body and the query are not part of the key on purpose. A program that restarts may compute a new body, for example
with another time stamp. It must get the old key and a mismatch error, not a new key and a second payment.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import NamedTuple

from retrysafe.core.keys import DERIVED_KEY_CHARS, MAX_TEXT_CHARS, derive, frame
from retrysafe.errors import UsageError

SERVICE = "retrysafe.client"


class OperationFrame:
    """One entered operation: its names, outermost first, and a counter for each call made in it."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()  # a context may be copied into threads, which then share this frame

    def next_number(self, method: str, host: str, path: str) -> int:
        with self._lock:
            self._counts[method, host, path] += 1
            return self._counts[method, host, path]


_entered: ContextVar[tuple[OperationFrame, ...]] = ContextVar("retrysafe_client_operations", default=())


class ClientOperation:
    """`with operation("order-7"):` gives every write in the block its own key, derived from this name.

    Entering the operation again, in this process or in a later one, gives the same keys: so a block can be retried as a
    whole. Nest blocks to distinguish equal calls: `with operation("line-3"):` inside the first block.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> ClientOperation:
        outer = _entered.get()
        names = (*outer[-1].names, self.name) if outer else (self.name,)
        _entered.set((*outer, OperationFrame(names)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _entered.set(_entered.get()[:-1])


def operation(name: str | None = None) -> ClientOperation:
    """An operation of several calls. Its name must be unique to this one operation: `order-7`, never `order`.

    Without a name it gets a random one (`.name`). Store it if the operation must survive a restart.
    """
    if name is None:
        return ClientOperation(secrets.token_hex(DERIVED_KEY_CHARS // 2))
    if not isinstance(name, str) or not name or len(name) > MAX_TEXT_CHARS:
        raise UsageError(f"operation({name!r}): give 1 to {MAX_TEXT_CHARS} characters that name this one operation")
    return ClientOperation(name)


def is_inside_operation() -> bool:
    """True inside a `with operation(…)` block."""
    return bool(_entered.get())


def current_names() -> tuple[str, ...]:
    """The names of the current operations, outermost first."""
    frames = _entered.get()
    return frames[-1].names if frames else ()


class Identity(NamedTuple):
    """The identity of one logical call."""

    id: str
    """The primary key of its journal entry."""
    key: str
    operation: str
    call: str
    own: bool
    """The client made the key, not the caller."""


def identify(method: str, host: str, path: str, given: str | None, token: Callable[[], str]) -> Identity:
    """The identity of the call that is about to be made. It also counts the call, so use it once per call."""
    step = f"{method} {path}"
    if given:  # sent unchanged: whether it is a valid key is for the server to decide
        return Identity(derive(given, host, step, part="given"), given, given, f"{method} {host}{path}", own=False)
    frames = _entered.get()
    if not frames:
        key = token()
        return Identity(key, key, "", f"{method} {host}{path}", own=True)
    innermost = frames[-1]
    number = innermost.next_number(method, host, path)
    key = derive(frame(SERVICE, *innermost.names), host, step, part=str(number))
    return Identity(key, key, " / ".join(innermost.names), f"{method} {host}{path} #{number}", own=True)


def rotate_key(key: str, times: int) -> str:
    """The key after `times` rotations. It is derived, so that a process without a journal gets the same keys again."""
    return key if times == 0 else derive(key, SERVICE, "rotate", part=str(times))
