"""The trace hook: what runs, in which order, and how long it took.

    RetrySafe(url, trace=callback)                                   # one call per TraceEvent
    logging.getLogger("retrysafe.trace").setLevel(logging.DEBUG)     # one log line per TraceEvent

Each span is two events, `NAME.started`, and `NAME.complete` or `NAME.failed`:

    claim       one claim, with all that it takes: encryption, a second sending, a store that is away
    invoke      the user's function, as far as a flow calls it (the web adapters run the handler themselves, between
                `claim.complete` and `settle.started`)
    step        one call to another system, by a foreign step of an operation
    settle      one write that ends an attempt: Complete, Release, Withdraw, Suspect, Resolve
    statement   one `execute` or `execute_many` of the store. A claim that is sent twice has two.

An event carries the kind of operation, the record's id, and a summary of the reply: never a key, a scope or a body, and
of an error only its class (S28).

RetrySafe decides whether there is a trace when it is made, and once more when it is first used. Without a trace, this
module is not imported and none of its functions is called. With a trace, the stores are wrapped and the performer is a
traced subclass; atrace.py has the one for event loops.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from retrysafe.core.ops import (
    Claim,
    ClaimReply,
    Complete,
    LookupReply,
    Op,
    Page,
    Release,
    Resolve,
    Suspect,
    Withdraw,
)
from retrysafe.core.records import Fence, Record
from retrysafe.core.trace_context import read_traceparent
from retrysafe.engine.drive import CancelledDuringOp
from retrysafe.engine.effects import CallFunction, Invoke
from retrysafe.engine.figures import Figures
from retrysafe.engine.heartbeat import Heartbeat, Lease
from retrysafe.engine.perform import Performer
from retrysafe.engine.sealing import Sealer
from retrysafe.stores.base import AsyncStore, Store
from retrysafe.stores.wrappers import AsyncStoreWrapper, StoreWrapper

R = TypeVar("R")

SPAN_NAMES: dict[type, str] = {
    Claim: "claim",
    **dict.fromkeys((Complete, Release, Withdraw, Suspect, Resolve), "settle"),
}
"""Operations that are a span of their own. The others are seen as statements only."""

_numbers = count(1)
_log = logging.getLogger("retrysafe.trace")


class TraceEvent(NamedTuple):
    """One event of the trace."""

    name: str
    """`claim.started`, `statement.complete`, `settle.failed` …"""
    span: int
    """The same number for the two events of one span; unique in this process."""
    seconds: float | None
    """How long the span took; None when it starts."""
    details: Mapping[str, Any]
    """`op`: the kind of operation; `id`: the record's id in hex; `kind` and `target`: what a claim or a call is for;
    `attempt`: the fencing token's number; `ops`: how many operations went together; `step`: the foreign step. When a
    span ends also `reply` or `error`, and for a refused claim `traceparent`: the first run of the record."""

    def __str__(self) -> str:
        shown = "".join(f" {name}={value}" for name, value in self.details.items())
        took = "" if self.seconds is None else f" {self.seconds * 1000:.3f} ms"
        return f"{self.name} span={self.span}{shown}{took}"


TraceCallback = Callable[[TraceEvent], None]


class Trace:
    """Makes events, and gives them to the callbacks and to the logger `retrysafe.trace`.

    A callback is an ordinary function. It is called where the event happens: in the calling thread, or on the event
    loop. What it raises is logged and disturbs nothing.
    """

    def __init__(self, callbacks: Sequence[TraceCallback] = ()) -> None:
        self._callbacks = callbacks

    def span(self, name: str, details: dict[str, Any]) -> Span:
        return Span(self, name, details)

    def emit(self, event: TraceEvent) -> None:
        for callback in self._callbacks:
            try:
                callback(event)
            except Exception:
                logging.getLogger("retrysafe").exception("the trace callback failed on %s", event.name)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s", event)


class Span:
    """A context manager around one thing that is traced. Set `reply` before the block ends."""

    __slots__ = ("_began", "_details", "_name", "_number", "_trace", "reply")

    def __init__(self, trace: Trace, name: str, details: dict[str, Any]) -> None:
        self._trace = trace
        self._name = name
        self._number = next(_numbers)
        self._details = details
        self.reply: Any = None

    def __enter__(self) -> Self:
        self._trace.emit(TraceEvent(f"{self._name}.started", self._number, None, self._details))
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        seconds = time.perf_counter() - self._began
        if isinstance(error, CancelledDuringOp):
            self.reply, error = error.reply, error.error or error.cause
        details = dict(self._details)
        if self.reply is not None:
            details["reply"] = summarize_reply(self.reply)
            details |= describe_first_run(self.reply)
        if error is not None:
            details["error"] = type(error).__qualname__
        ending = "complete" if error is None else "failed"
        self._trace.emit(TraceEvent(f"{self._name}.{ending}", self._number, seconds, details))


# What may be shown ----------------------------------------------------------------------------------


def describe_op(op: Op[Any]) -> dict[str, Any]:
    """The details of an operation. Fields are shown by name and type, so that a new field is not shown by accident."""
    details: dict[str, Any] = {"op": type(op).__name__}
    record_id = getattr(op, "id", None)
    if isinstance(record_id, bytes):
        details["id"] = record_id.hex()
    if isinstance(op, Claim):
        details["kind"], details["target"] = op.kind, op.target
    fence = getattr(op, "fence", None)
    if isinstance(fence, Fence):
        details["attempt"] = fence.attempt
    return details


def describe_first_run(reply: Any) -> dict[str, Any]:
    """The trace of the run that a refused claim found."""
    if isinstance(reply, ClaimReply) and not reply.granted and reply.record is not None:
        found = read_traceparent(reply.record)
        return {"traceparent": found} if found else {}
    return {}


def summarize_reply(reply: Any) -> str:
    """A reply in a word or two."""
    if isinstance(reply, ClaimReply):
        return "granted" if reply.granted else f"refused: {_describe_record(reply.record, 'locked')}"
    if isinstance(reply, bool):
        return "applied" if reply else "refused"
    if isinstance(reply, int):
        return str(reply)
    if isinstance(reply, LookupReply):
        return _describe_record(reply.record, "absent")
    if isinstance(reply, Page):
        return f"{len(reply.records)} records"
    if isinstance(reply, list | tuple) and not hasattr(reply, "_fields"):
        return f"{len(reply)} items"
    return type(reply).__name__


def _describe_record(record: Record | None, otherwise: str) -> str:
    return otherwise if record is None else record.state.value


# The two places that are traced: the store and the performer ------------------------------------------


class TracedStore(StoreWrapper):
    """A store whose two verbs are spans named `statement`."""

    def __init__(self, store: Store, trace: Trace) -> None:
        super().__init__(store)
        self._trace = trace

    def execute(self, op: Op[R]) -> R:
        with self._trace.span("statement", describe_op(op)) as span:
            reply = self._store.execute(op)
            span.reply = reply
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        with self._trace.span("statement", describe_ops(ops)) as span:
            replies = self._store.execute_many(ops)
            span.reply = replies
        return replies

    def __getattr__(self, name: str) -> Any:
        """What a store has besides the seam, such as `caches` of a tiered one."""
        return getattr(self._store, name)


class AsyncTracedStore(AsyncStoreWrapper):
    """The same for event loops."""

    def __init__(self, store: AsyncStore, trace: Trace) -> None:
        super().__init__(store)
        self._trace = trace

    async def execute(self, op: Op[R]) -> R:
        with self._trace.span("statement", describe_op(op)) as span:
            reply = await self._store.execute(op)
            span.reply = reply
        return reply

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        with self._trace.span("statement", describe_ops(ops)) as span:
            replies = await self._store.execute_many(ops)
            span.reply = replies
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def describe_ops(ops: Sequence[Op[Any]]) -> dict[str, Any]:
    kinds = sorted({type(op).__name__ for op in ops})
    return {"op": "+".join(kinds), "ops": len(ops)}


class TracedPerformer(Performer):
    """A performer whose claims, settlements and calls are spans."""

    def __init__(
        self, store: Store, heartbeat: Heartbeat, sealer: Sealer, trace: Trace, figures: Figures | None = None
    ) -> None:
        super().__init__(store, heartbeat, sealer, figures)
        self._trace = trace

    def execute(self, op: Op[R], until: float | None = None) -> R:
        name = SPAN_NAMES.get(type(op))
        if name is None:
            return super().execute(op, until)
        with self._trace.span(name, describe_op(op)) as span:
            reply = super().execute(op, until)
            span.reply = reply
        return reply

    def _invoke(self, call: Invoke) -> Any:
        with self._trace.span("invoke", describe_invoke(call)):
            return super()._invoke(call)


def describe_invoke(call: Invoke) -> dict[str, Any]:
    return {
        "kind": call.kind,
        "target": call.target,
        "id": call.lease.id.hex(),
        "attempt": call.lease.fence.attempt,
    }


def describe_step(call: CallFunction, lease: Lease | None) -> dict[str, Any]:
    whose = {} if lease is None else {"id": lease.id.hex(), "attempt": lease.fence.attempt}
    return {"step": call.step, **whose}
