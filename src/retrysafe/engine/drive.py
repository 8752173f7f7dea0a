"""The generator protocol, and the two loops that drive flows: `run` for threads, `arun` for event loops.

What decides is written as a generator that does no I/O. It yields a request, the driver carries the request out and
resumes the generator with the reply, and the generator's return value is the result. So one text serves threads, event
loops and tests.

The rules, for every type below:

- One request at a time. The driver resumes with `send(reply)`, or with `throw(error)` if the request failed. The
  generator decides whether the error is final.
- A generator does not do I/O, sleep, await, or hold a lock over a `yield`. It yields a request instead.
- A generator that catches what is not an `Exception` (a cancellation, KeyboardInterrupt) may still settle what it
  holds, and raises it again. After GeneratorExit it yields nothing: there is no driver any more.
- Generators are composed with `yield from`.

The types, what each yields, and what drives it:

- `Flow` (engine/effects.py) yields operations and other effects; `run` and `arun` drive it with a performer.
- `OrphanFlow` (engine/orphaned_claims.py) yields operations and seconds to wait; `arun`, and a loop in that file that
  has many of them under way.
- `WorkerFlow` (worker/flows.py) yields operations, calls and seconds to sleep; `run` and `arun`.
- Local steps (operations/local.py) yield statements and the user's function; `run` and `arun`, from
  operations/perform.py, with an open transaction.
- `TxFlow` (transactions/effects.py) yields statements, begin, end and the user's body; transactions/drive.py. Its loops
  can stop at the body and go on later.
- `Plan` (stores/base.py) yields the requests of one store (SQL, scripts, …); `follow` and `afollow` in that file.
- `PacketPlan` (stores/mysql/protocol.py) yields packets of statements; `follow` and `afollow`, too.
- `PipelineGen` (stores/postgres/pipeline.py) yields psycopg's waits for a socket; psycopg, and a loop in
  stores/postgres/lines.py.
- `CallFlow` (client/flow.py) yields requests to send and pauses; two loops in that file. The client imports no engine.

Some generators resume another one, to change what it yields or to run several side by side: the plans of batches,
routes and replicas (stores/redis/wire.py, stores/redis/routing.py, stores/redis/replicas.py, stores/mysql/protocol.py,
stores/mongo/receipts.py, transactions/early_commits.py), and flows of the web (web/claim_flows.py,
web/transaction_flow.py). transactions/block.py resumes a flow at the end of the user's block.
transactions/hand_endings.py resumes psycopg's own waits while it watches a connection. web/asgi.py takes the first step
of a coroutine, and web/timeouts.py the others.

tests/unit/engine/test_drive.py compares this list with the source.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.engine.effects import INTERRUPTIBLE, LeaveClaim, Persist

if TYPE_CHECKING:
    import asyncio

E = TypeVar("E")
R = TypeVar("R")


class FirstReply:
    """How the first effect of a flow ended. A caller that has performed that effect itself passes this to the driver:
    the flow then decides as if the driver had performed it (web/exchange.py)."""

    __slots__ = ("_error", "_reply")

    def __init__(self, reply: Any = None, error: BaseException | None = None) -> None:
        self._reply = reply
        self._error = error

    def get(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._reply


def run(flow: Generator[E, Any, R], perform: Callable[[E], Any], first: FirstReply | None = None) -> R:
    """Drive a flow with a blocking `perform`."""
    thrown: BaseException | None = None
    try:
        effect = next(flow)
        while True:
            try:
                if first is not None:
                    begun, first = first, None
                    reply = begun.get()
                else:
                    reply = None if effect is INTERRUPTIBLE else perform(effect)
            except BaseException as error:
                thrown = error
                effect = flow.throw(error)
            else:
                effect = flow.send(reply)
    except StopIteration as done:
        result: R = done.value
        return result
    except RuntimeError as error:
        if not is_same_stop(error, thrown):
            raise
    assert thrown is not None
    raise thrown


def is_same_stop(raised: BaseException, thrown: BaseException | None) -> bool:
    """True if `raised` is what became of `thrown`, a StopIteration of the user's code, on its way through a generator
    that did not catch it: Python makes a RuntimeError of it there (PEP 479). Coroutines do the same, so only the sync
    loops need this."""
    return isinstance(raised, RuntimeError) and isinstance(thrown, StopIteration) and raised.__cause__ is thrown


class CancelledDuringOp(BaseException):
    """Raised by a performer: the caller was cancelled during a storage operation, and the operation was finished
    nevertheless. `reply` or `error` is how it ended, `cause` the cancellation."""

    def __init__(self, cause: asyncio.CancelledError, reply: Any, error: Exception | None = None) -> None:
        super().__init__()
        self.cause = cause
        self.reply = reply
        self.error = error


_STORE_EFFECTS = (Op, Persist, LeaveClaim)


async def arun(
    flow: Generator[E, Any, R], perform: Callable[[E], Awaitable[Any]], first: FirstReply | None = None
) -> R:
    """Drive a flow with an awaitable `perform`.

    A cancellation that arrives during a storage operation is held back until that operation has ended. The flow then
    goes on with storage operations only, so that it can release what it holds; at its first other effect the
    cancellation is thrown into it.
    """
    held: asyncio.CancelledError | None = None
    try:
        effect = next(flow)
        while True:
            if held is not None and not isinstance(effect, _STORE_EFFECTS):
                effect = flow.throw(held)
                continue
            try:
                if first is not None:
                    begun, first = first, None
                    reply = begun.get()
                else:
                    reply = None if effect is INTERRUPTIBLE else await perform(effect)
            except CancelledDuringOp as stop:
                held = stop.cause
                effect = flow.send(stop.reply) if stop.error is None else flow.throw(stop.error)
            except BaseException as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(reply)
    except StopIteration as done:
        if held is not None:
            raise held from None
        result: R = done.value
        return result
    except Exception as error:
        if held is not None:  # the caller asked for a cancellation, so that is what it gets
            raise held from error
        raise
