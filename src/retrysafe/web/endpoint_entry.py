"""Whether an endpoint was entered: what an adapter knows about it, and what follows for the key.

A router that redirects or finds nothing, and a framework that finds a body invalid, answer in the application's name
although nothing of it has run. Such a claim can be withdrawn: the same key may then be used for the request as it
should have been. That must be known, from a marker of the framework or from a mark on the endpoint itself. It is never
judged by the status: a handler may well redirect after it charged (I37).
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
    """`entered` is None where nobody knows; `redirected` where the router itself sent the client elsewhere."""

    entered: bool | None
    redirected: bool = False


UNKNOWN = EndpointEntry(None)
ENTERED = EndpointEntry(True)
REFUSED = EndpointEntry(False)
"""By the router or the framework, before anything of the application's."""
REDIRECTED = EndpointEntry(False, redirected=True)

EntryProbe = Callable[[int], EndpointEntry]
"""Asked when the answer is there, with its status: an adapter may want to see that it is the router's own."""


def should_withdraw(policy: Policy, entered: bool | None, redirected: bool) -> bool:
    """Whether the claim is withdrawn. A redirect by the router always is: the client that follows it sends the same key
    to another address, and would be told for ever that the key belongs to another request."""
    return entered is False and (redirected or policy.invalid == "withdraw")


def mark_endpoint(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The endpoint, with a mark on it: whoever calls it has entered it. For functions of either colour."""
    if is_marked(endpoint):
        return endpoint

    @functools.wraps(endpoint)
    def entering(*args: Any, **kwargs: Any) -> Any:
        exchange = current_exchange()
        if exchange is not None:
            exchange.endpoint_entry = ENTERED
        return endpoint(*args, **kwargs)

    entering._retrysafe_notes = True  # type: ignore[attr-defined]
    made, code = typing.cast(FunctionType, entering), getattr(endpoint, "__code__", None)
    if code is not None:  # frameworks name an endpoint's file and line in their messages: the user's, not ours
        made.__code__ = made.__code__.replace(
            co_filename=code.co_filename, co_firstlineno=code.co_firstlineno, co_name=code.co_name
        )
    return entering


def is_marked(endpoint: Any) -> bool:
    return getattr(endpoint, "_retrysafe_notes", False) is True
