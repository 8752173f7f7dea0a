"""Whether an endpoint was entered, and whether the claim is withdrawn if none was.

A router that redirects or finds no route, and a framework that rejects an invalid body, answer before any code of the
application has run. Such a claim can be withdrawn: the client may then use the same key for the corrected request. The
adapter must know this for certain, from the framework's own data or from a mark on the endpoint. The status does not
tell: a handler may redirect after it charged a card (I37).
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from retrysafe.policy import Policy
from retrysafe.web.exchange_context import current_exchange


class EndpointEntry(NamedTuple):
    """`entered` is None if it is not known. `redirected` is True if the router itself redirected the client."""

    entered: bool | None
    redirected: bool = False


UNKNOWN = EndpointEntry(None)
ENTERED = EndpointEntry(True)
REFUSED = EndpointEntry(False)
"""The router or the framework refused the request before any code of the application ran."""
REDIRECTED = EndpointEntry(False, redirected=True)

EntryProbe = Callable[[int], EndpointEntry]
"""Called with the status when the answer is there: an adapter may check that the answer is the router's own."""


def should_withdraw(policy: Policy, entered: bool | None, redirected: bool) -> bool:
    """True if the claim is withdrawn. After a redirect by the router it always is: the client follows it with the same
    key to another path, and would otherwise always get a mismatch."""
    return entered is False and (redirected or policy.invalid == "withdraw")


def mark_endpoint(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The endpoint, wrapped so that a call records its entry. For sync and async functions."""
    if is_marked(endpoint):
        return endpoint

    @functools.wraps(endpoint)
    def note_entry_and_call(*args: Any, **kwargs: Any) -> Any:
        exchange = current_exchange()
        if exchange is not None:
            exchange.endpoint_entry = ENTERED
        return endpoint(*args, **kwargs)

    return declare_marked(note_entry_and_call, endpoint)


def declare_marked(wrapper: Callable[..., Any], endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper of an endpoint, which records its entry by itself."""
    made, code = typing.cast(FunctionType, wrapper), getattr(endpoint, "__code__", None)
    made._retrysafe_notes = True  # type: ignore[attr-defined]
    if code is not None:  # messages of frameworks must name the user's file and line, not ours
        made.__code__ = made.__code__.replace(
            co_filename=code.co_filename, co_firstlineno=code.co_firstlineno, co_name=code.co_name
        )
    return made


def is_marked(endpoint: Any) -> bool:
    return getattr(endpoint, "_retrysafe_notes", False) is True
