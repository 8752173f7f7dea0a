"""What a flow asks for: a storage operation, the user's call, or a pause. Flows are generators that yield these
and never do I/O themselves, so that one flow serves threads, event loops and simulations alike.

Unlike operations these are requests of one flow at one moment, so they are not compared by value.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.core.ops import Op

if TYPE_CHECKING:
    from retrysafe.engine.heartbeat import Lease

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Invoke:
    """Call the user's function, keeping the lease alive meanwhile. It may return an awaitable to the async loop."""

    function: Callable[[], Any]
    lease: Lease
    """Whoever yields this ends it, once the outcome is written down: until then it is kept."""
    duration: float
    started: bool = field(default=False, init=False)
    """Set by whoever performs it, just before the call: an interruption before that has had no effect."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowPause:
    """Wait a little: `seconds`, or at most `patience` where the store wakes us when the record is settled.

    The reply is how long it was.
    """

    id: bytes
    seconds: float
    notify_timeout: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Persist:
    """An owner's own write: sent again also where the store was away, for what is left of the lease (until `until`, on
    the process's clock) and 30 seconds at most."""

    op: Op[Any]
    until: float


class Interruptible:
    """Nothing is asked for: a place between two operations where a cancellation that was held back is delivered."""

    __slots__ = ()


INTERRUPTIBLE = Interruptible()


@dataclass(frozen=True, slots=True, eq=False)
class NotifyWaiters:
    """Tell those who wait that the record was settled. A courtesy: if it fails they look again by themselves."""

    id: bytes


@dataclass(frozen=True, slots=True, eq=False)
class NotifyWorker:
    """Work for the worker was committed: wake it (engine/worker_notify.py). A courtesy, like Announce."""


@dataclass(frozen=True, slots=True, eq=False)
class CallFunction:
    """Call a function of the user's while the lease is kept by somebody further out; bounded on an event loop."""

    function: Callable[[], Any]
    timeout: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class RunTransaction:
    """One transaction on the user's database. `story` is told the open transaction and yields what to do in it (see
    operations/local.py); when it ends all is committed, and when it raises all is rolled back."""

    flow: Callable[[Any], Generator[Any, Any, Any]]


Effect = (
    Op[Any]
    | Persist
    | Invoke
    | FlowPause
    | NotifyWaiters
    | NotifyWorker
    | CallFunction
    | RunTransaction
    | Interruptible
)
Flow = Generator[Effect, Any, R]
