"""The exchange of the current request (a context variable), and the exception that ends the application early."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retrysafe.web.exchange import Exchange

_current: ContextVar[Exchange | None] = ContextVar("retrysafe_exchange", default=None)


def current_exchange() -> Exchange | None:
    """The exchange of the request that this context handles, or None."""
    return _current.get()


set_current_exchange: Callable[[Exchange | None], Token[Exchange | None]] = _current.set
"""Make it the exchange of this context."""
reset_current_exchange: Callable[[Token[Exchange | None]], None] = _current.reset


class ResponseReady(Exception):
    """The application must not run, because the exchange already has the answer. Let this exception pass, or turn it
    into any answer of your framework; the middleware sends the answer of the exchange."""


def is_response_ready(error: BaseException) -> bool:
    """True if this is or wraps a ResponseReady. Frameworks wrap exceptions of their task groups and views."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, ResponseReady):
            return True
        seen.add(id(one))
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
    return False
