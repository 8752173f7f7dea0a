"""Effects: what a flow yields, such as a storage operation, a call of the user's function, or a pause. A performer
carries them out (perform.py, aperform.py); drive.py explains the protocol.

Unlike operations, effects are requests of one flow at one moment, so they are not compared by value.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.core.ops import Op, value_class

if TYPE_CHECKING:
    from retrysafe.engine.heartbeat import Lease

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Invoke:
    """Call the user's function and keep the lease alive meanwhile. On an event loop the function may return an
    awaitable."""

    function: Callable[[], Any]
    lease: Lease
    """The lease to keep. The flow ends it when the outcome is stored."""
    duration: float
    kind: str = ""
    target: str = ""
    """What runs, for the trace."""
    started: bool = field(default=False, init=False)
    """Set by the performer just before the call. If it is False, an interruption came before the function ran."""


@value_class
class FlowPause:
    """Wait for `seconds`; or, where the store sends notifications, until the record is settled, at most
    `notify_timeout` seconds. The reply is how long the pause was.
    """

    id: bytes
    seconds: float
    notify_timeout: float = 0.0


@value_class
class Persist:
    """A write of the owner, which is sent again also after the store was unavailable: for what is left of the lease
    (until `until`, on the process's clock), and 30 seconds at most."""

    op: Op[Any]
    until: float


class Interruptible:
    """No request. A point between two operations at which a cancellation that was held back is delivered."""

    __slots__ = ()


INTERRUPTIBLE = Interruptible()


@value_class
class LeaveClaim:
    """The caller leaves, and nothing ran under this token. A grant of it is released in the background, also one that a
    late copy of the claim gets (orphaned_claims.py)."""

    id: bytes
    token: bytes


@value_class
class NotifyWaiters:
    """Notify waiters that the record was settled. Best effort: without it they poll."""

    id: bytes


@value_class
class NotifyWorker:
    """Wake the worker, because work for it was committed (engine/worker_notify.py). Best effort, like NotifyWaiters."""


@value_class
class CallFunction:
    """Call a function of the user's under a lease that an outer flow keeps. On an event loop `timeout` bounds it."""

    function: Callable[[], Any]
    timeout: float | None = None
    step: str = ""
    """The foreign step that this call sends, for the trace."""


@value_class
class RunTransaction:
    """Run one transaction on the user's database. `flow` gets the open transaction and yields what to do in it
    (operations/local.py). Its end commits the transaction; an exception rolls it back."""

    flow: Callable[[Any], Generator[Any, Any, Any]]


Effect = (
    Op[Any]
    | Persist
    | Invoke
    | FlowPause
    | LeaveClaim
    | NotifyWaiters
    | NotifyWorker
    | CallFunction
    | RunTransaction
    | Interruptible
)
Flow = Generator[Effect, Any, R]
