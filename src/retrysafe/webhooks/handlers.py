"""Who handles which type of event: `"invoice.paid"`, `"invoice.*"`, `"*"`. The most exact one does, and only that."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.errors import UsageError

TX_ARGUMENT = "tx"
"""The argument that asks for the transaction: what the handler writes there commits with the event's own record."""


class Handler(NamedTuple):
    pattern: str
    function: Callable[..., Any]
    is_async: bool
    wants_tx: bool
    tx_first: bool

    def call(self, event: Any, handle: Any = None) -> Any:
        if not self.wants_tx:
            return self.function(event)
        return self.function(handle, event) if self.tx_first else self.function(event, tx=handle)


class Handlers:
    """Handlers by pattern."""

    def __init__(self) -> None:
        self._exact: dict[str, Handler] = {}
        self._beginnings: dict[str, Handler] = {}

    def add(self, pattern: str, function: Callable[..., Any]) -> Handler:
        made = build_handler(pattern, function)
        where, name = (self._beginnings, pattern[:-1]) if pattern.endswith("*") else (self._exact, pattern)
        if name in where:
            raise UsageError(
                f"on({pattern!r}) is {function_name(where[name].function)} already; "
                "one handler per pattern: call both from one"
            )
        where[name] = made
        return made

    def find(self, type_: str) -> Handler | None:
        """The handler of a type; None if nobody wants it."""
        exact = self._exact.get(type_)
        if exact is not None:
            return exact
        fitting = [name for name in self._beginnings if type_.startswith(name)]
        return self._beginnings[max(fitting, key=len)] if fitting else None

    def __len__(self) -> int:
        return len(self._exact) + len(self._beginnings)


def build_handler(pattern: str, function: Callable[..., Any], what: str = "event") -> Handler:
    if not isinstance(pattern, str) or not pattern or "*" in pattern[:-1] or len(pattern) > 200:
        raise UsageError(f"on({pattern!r}): give an event type, a beginning with * behind it ('invoice.*'), or '*'")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{function_name(function)} is a generator: nobody would run it. Handlers are def or async def"
        )
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.default is each.empty or each.name == TX_ARGUMENT]
    if len([name for name in names if name != TX_ARGUMENT]) != 1:
        raise UsageError(
            f"{function_name(function)}({', '.join(names)}) cannot handle {pattern!r}: a handler takes the {what}, and "
            "`tx` if it wants to commit with it"
        )
    return Handler(
        pattern, function, inspect.iscoroutinefunction(function), TX_ARGUMENT in names, names[0] == TX_ARGUMENT
    )


def function_name(function: Callable[..., Any]) -> str:
    """A function's name; a partial has none."""
    return getattr(function, "__qualname__", None) or repr(function)
