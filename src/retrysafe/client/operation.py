"""Which key a call gets: one per logical operation, the same however often it is sent.

    outside of an operation      a random key for each call
    in `with operation("x")`     derived from the name, the call (method, host, path) and its number among the equal
                                 ones: the same after a restart, and different calls need not come in the same order
    a key the caller has set     that key

The body and the query are not part of it on purpose: a program that starts again and computes its body anew, with
another time stamp in it, must get the old key and be told of the mismatch, not a new key and a second payment.
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
    """One entered operation: its names from the outermost on, and how often each call was made in it."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._made: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()  # a context may be copied into threads, which then share this frame

    def next_number(self, method: str, host: str, path: str) -> int:
        with self._lock:
            self._made[method, host, path] += 1
            return self._made[method, host, path]


_entered: ContextVar[tuple[OperationFrame, ...]] = ContextVar("retrysafe_client_operations", default=())


class Operation:
    """`with operation("order-7"):` every write in the block gets a key of its own that belongs to this name.

    Entering it again, in this process or in the next one, gives the same keys again: that is how a block is retried as
    a whole. Blocks may be nested to tell equal calls apart: `with operation("line-3"):` inside of it.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Operation:
        outer = _entered.get()
        names = (*outer[-1].names, self.name) if outer else (self.name,)
        _entered.set((*outer, OperationFrame(names)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _entered.set(_entered.get()[:-1])


def operation(name: str | None = None) -> Operation:
    """An operation of several calls. Name it after what it does, once and for ever: `order-7`, never `order`.

    Without a name it gets a random one (`.name`), which holds for as long as you keep it.
    """
    if name is None:
        return Operation(secrets.token_hex(DERIVED_KEY_CHARS // 2))
    if not isinstance(name, str) or not name or len(name) > MAX_TEXT_CHARS:
        raise UsageError(f"operation({name!r}): give 1 to {MAX_TEXT_CHARS} characters that name this one operation")
    return Operation(name)


def is_inside_operation() -> bool:
    """Whether we are inside of an operation."""
    return bool(_entered.get())


def current_names() -> tuple[str, ...]:
    """The names of the operations we are inside of, from the outermost on."""
    around = _entered.get()
    return around[-1].names if around else ()


class Identity(NamedTuple):
    """Which logical call this is."""

    id: str
    """What the journal finds it by."""
    key: str
    operation: str
    call: str
    own: bool
    """We made the key."""


def identify(method: str, host: str, path: str, given: str | None, token: Callable[[], str]) -> Identity:
    """The identity of the call that is about to be made. Counts it, so it is asked once for each call."""
    step = f"{method} {path}"
    if given:  # sent as it is: whether it is a good key is between the caller and the server
        return Identity(derive(given, host, step, part="given"), given, given, f"{method} {host}{path}", own=False)
    around = _entered.get()
    if not around:
        key = token()
        return Identity(key, key, "", f"{method} {host}{path}", own=True)
    here = around[-1]
    number = here.next_number(method, host, path)
    key = derive(frame(SERVICE, *here.names), host, step, part=str(number))
    return Identity(key, key, " / ".join(here.names), f"{method} {host}{path} #{number}", own=True)


def rotate_key(key: str, times: int) -> str:
    """The key after it was exchanged some times: derived, so that a restart without a journal finds the way again."""
    return key if times == 0 else derive(key, SERVICE, "rotate", part=str(times))
