"""The exchange of the request that is being handled in this context."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retrysafe.web.exchange import Exchange

_current: ContextVar[Exchange | None] = ContextVar("retrysafe_exchange", default=None)


def current_exchange() -> Exchange | None:
    """The exchange of the request that is being handled here, or None."""
    return _current.get()


def set_current_exchange(exchange: Exchange) -> Token[Exchange | None]:
    """Make it the current one of this context."""
    return _current.set(exchange)


def reset_current_exchange(token: Token[Exchange | None]) -> None:
    _current.reset(token)
