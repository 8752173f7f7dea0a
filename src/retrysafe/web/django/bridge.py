"""Claiming and settling from sync code on an async exchange, and the other way round.

On ASGI the exchange is async, and a plain view runs in a thread. On WSGI the exchange is sync, and an async view runs
on an event loop of its own. Django supports every combination, and so do we.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async

from retrysafe.core.keys import Key
from retrysafe.errors import UsageError
from retrysafe.policy import Policy
from retrysafe.web import transaction_io
from retrysafe.web.asgi_adapter import claim_or_identify
from retrysafe.web.exchange import EXCHANGE, Exchange
from retrysafe.web.openapi import Strength
from retrysafe.web.paths import build_target as build_path_target
from retrysafe.web.routes import SAFE_METHODS
from retrysafe.web.sync_async import AsyncExchange, SyncExchange
from retrysafe.web.transaction_flow import RequestTransaction
from retrysafe.web.transaction_io import SyncRequestTransaction, ThreadedRequestTransaction, TransactionRequest

EXCHANGE_ATTRIBUTE = "retrysafe_exchange"
"""The request attribute with the exchange, set by the middleware; None if there is nothing to claim."""

AnyExchange = AsyncExchange | SyncExchange


def require_exchange(request: Any) -> AnyExchange | None:
    """The request's exchange; None if there is nothing to claim (a safe method, an unprotected route)."""
    exchange = find_captured(request)
    if exchange is not None or request.method in SAFE_METHODS or hasattr(request, EXCHANGE_ATTRIBUTE):
        return exchange
    target = build_path_target(request.method, request.path)
    raise UsageError(
        f"{target} asks for its claim, but no middleware has captured the request; "
        "put 'retrysafe.web.django.IdempotencyMiddleware' first in MIDDLEWARE"
    )


def find_captured(request: Any) -> AnyExchange | None:
    """The exchange, if a middleware captured the request: an ASGI or WSGI one, or the one in MIDDLEWARE."""
    for place in (getattr(request, "scope", None), request.META):
        if place is not None and isinstance(place.get(EXCHANGE), Exchange):
            exchange: AnyExchange = place[EXCHANGE]
            return exchange
    own: AnyExchange | None = getattr(request, EXCHANGE_ATTRIBUTE, None)
    return own


def claim(
    exchange: AnyExchange, principal: Any, policy: Policy | None, target: str, strength: Strength = "guard"
) -> Key | None:
    """Claim the key. For an operation, which claims its own record, only read the key. Raises ResponseReady."""
    if isinstance(exchange, AsyncExchange):
        key: Key | None = async_to_sync(claim_or_identify)(exchange, principal, policy, target, strength)
        return key
    if strength == "guard":
        return exchange.claim(principal, policy, target=target)
    task = exchange.identify(principal, policy, target=target)
    return None if task is None else task.key


async def aclaim(
    exchange: AnyExchange, principal: Any, policy: Policy | None, target: str, strength: Strength = "guard"
) -> Key | None:
    if isinstance(exchange, AsyncExchange):
        return await claim_or_identify(exchange, principal, policy, target, strength)
    return claim(exchange, principal, policy, target, strength)  # on WSGI the loop of an async view runs nothing else


def claim_in_transaction(
    exchange: AnyExchange, principal: Any, tx_request: TransactionRequest
) -> SyncRequestTransaction:
    """Claim the key by opening a transaction, in the thread of a plain view. Raises ResponseReady."""
    if isinstance(exchange, SyncExchange):
        return transaction_io.claim_in_transaction(exchange, principal, tx_request)
    tx = transaction_io.choose_tx(exchange, tx_request)
    task = async_to_sync(exchange.identify)(principal, tx_request.policy, target=tx_request.target, keep=True)
    assert task is not None, "these modes have a key for each tx_request"
    inner = SyncRequestTransaction(RequestTransaction(exchange, task), tx)
    # Django's connections belong to threads: settling, which begins on the loop, must run in this thread.
    exchange.transaction = ThreadedRequestTransaction(
        inner, lambda function: sync_to_async(function, thread_sensitive=True)()
    )
    inner.open()
    return inner


def settle_failure(exchange: AnyExchange, error: BaseException) -> None:
    """The view raised an unhandled exception: store our own answer and send it instead of Django's error page."""
    if isinstance(exchange, AsyncExchange):
        exchange.response = async_to_sync(exchange.settle)(exchange.settle_raised(error))
    else:
        exchange.response = exchange.settle(exchange.settle_raised(error))


async def asettle_failure(exchange: AnyExchange, error: BaseException) -> None:
    if isinstance(exchange, AsyncExchange):
        exchange.response = await exchange.settle(exchange.settle_raised(error))
    else:
        exchange.response = exchange.settle(exchange.settle_raised(error))


def read_principal(scope: Callable[[Any], Any], request: Any) -> Any:
    principal = scope(request)
    return async_to_sync(_await_principal)(principal) if inspect.isawaitable(principal) else principal


async def aread_principal(scope: Callable[[Any], Any], request: Any) -> Any:
    """Runs a plain callable in a thread: it may load the user from the database, which Django forbids on the loop."""
    if inspect.iscoroutinefunction(scope):
        return await scope(request)
    principal = await sync_to_async(scope)(request)
    return await principal if inspect.isawaitable(principal) else principal


async def _await_principal(principal: Any) -> Any:
    return await principal


def build_target(request: Any) -> str:
    """The route's template, not the path. It is the name in records and counters."""
    match = request.resolver_match
    return f"{request.method} /{match.route}" if match is not None and match.route is not None else ""
