"""The handlers of events and messages: which function handles what, and one call of it as work for the guard.

A handler is registered for a pattern: `"invoice.paid"`, `"invoice.*"` or `"*"`. The most exact pattern wins, and only
that handler runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.core.records import Answer
from retrysafe.engine.unstarted import refuse_unstarted
from retrysafe.errors import UsageError

TX_ARGUMENT = "tx"
"""A handler with this argument gets the transaction: what it writes there commits with the event's own record."""


class Handler(NamedTuple):
    """A user's function for one pattern, with what its signature says about it."""

    pattern: str
    function: Callable[..., Any]
    is_async: bool
    wants_tx: bool
    tx_first: bool

    def call(self, event: Any, handle: Any = None) -> Any:
        """What the function returned. Raises UsageError if that is work which nobody would do."""
        if not self.wants_tx:
            result = self.function(event)
        else:
            result = self.function(handle, event) if self.tx_first else self.function(event, tx=handle)
        return result if self.is_async else refuse_unstarted(result)


class Handlers:
    """Handlers by pattern."""

    def __init__(self) -> None:
        self._exact: dict[str, Handler] = {}
        self._by_prefix: dict[str, Handler] = {}

    def add(self, pattern: str, function: Callable[..., Any]) -> Handler:
        handler = build_handler(pattern, function)
        registered, name = (self._by_prefix, pattern[:-1]) if pattern.endswith("*") else (self._exact, pattern)
        if name in registered:
            raise UsageError(
                f"on({pattern!r}) is {function_name(registered[name].function)} already; "
                "one handler per pattern: call both from one"
            )
        registered[name] = handler
        return handler

    def find(self, type_: str) -> Handler | None:
        """The handler of a type; None if there is none."""
        exact = self._exact.get(type_)
        if exact is not None:
            return exact
        prefixes = [prefix for prefix in self._by_prefix if type_.startswith(prefix)]
        return self._by_prefix[max(prefixes, key=len)] if prefixes else None

    def __len__(self) -> int:
        return len(self._exact) + len(self._by_prefix)


def build_handler(pattern: str, function: Callable[..., Any], what: str = "event") -> Handler:
    """A function as a handler. Raises UsageError if it cannot be one; `what` names its argument in the message."""
    if not isinstance(pattern, str) or not pattern or "*" in pattern[:-1] or len(pattern) > 200:
        raise UsageError(f"on({pattern!r}): give an event type, a beginning with * behind it ('invoice.*'), or '*'")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{function_name(function)} is a generator: its body would not run. Handlers are def or async def"
        )
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.default is each.empty or each.name == TX_ARGUMENT]
    if len([name for name in names if name != TX_ARGUMENT]) != 1:
        raise UsageError(
            f"{function_name(function)}({', '.join(names)}) cannot handle {pattern!r}: a handler takes the {what}, and "
            "`tx` if it wants to commit with it"
        )
    return Handler(pattern, function, is_async_callable(function), TX_ARGUMENT in names, names[0] == TX_ARGUMENT)


def is_async_callable(function: Callable[..., Any]) -> bool:
    """Whether a call is declared to return a coroutine: an `async def`, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def function_name(function: Callable[..., Any]) -> str:
    """A function's name, or its `repr` if it has none, as a partial."""
    return getattr(function, "__qualname__", None) or repr(function)


class HandlerWork:
    """One event or message for one handler, as work for the guard or the transaction.

    `threaded`: the handler is a plain function that is called on an event loop. It runs in a thread, so that it does
    not block the loop.
    """

    __slots__ = ("handler", "message", "threaded")

    def __init__(self, handler: Handler, message: Any, *, threaded: bool = False) -> None:
        self.handler = handler
        self.message = message
        self.threaded = threaded

    def call(self, given: Any) -> Any:
        """`given` is the guard's record, or a transaction's handle, which only a handler with `tx` gets."""
        if self.handler.is_async:
            return self.acall_handler(given)
        if self.threaded:
            import asyncio

            return asyncio.to_thread(self.call_handler, given)
        return self.call_handler(given)

    def call_handler(self, given: Any) -> Any:
        return self.handler.call(self.message, given)

    async def acall_handler(self, given: Any) -> Any:
        return await self.handler.call(self.message, given)

    def failure(self, error: Exception) -> Answer:
        raise AssertionError("a handler's failure is never stored: the event or message is delivered again") from error
