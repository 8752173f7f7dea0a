"""Claims and settlements from code of one colour on an exchange of the other.

Under ASGI the exchange is async, and a plain view runs in a thread; under WSGI it is sync, and an async view runs on a
loop of its own. Django lets any view run anywhere, and so do we.
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
from retrysafe.web.paths import target_of as target_at
from retrysafe.web.routes import SAFE_METHODS
from retrysafe.web.sync_async import AsyncExchange, SyncExchange
from retrysafe.web.transaction_flow import RequestTransaction
from retrysafe.web.transaction_io import SyncRequestTransaction, ThreadedRequestTransaction, TransactionRequest

EXCHANGE_ATTRIBUTE = "retrysafe_exchange"
"""Where the middleware leaves the exchange on a request; None where there is nothing to claim."""

AnyExchange = AsyncExchange | SyncExchange


def exchange_of(request: Any) -> AnyExchange | None:
    """The request's exchange; None where there is nothing to claim (a safe method, a route left alone)."""
    exchange = find_captured(request)
    if exchange is not None or request.method in SAFE_METHODS or hasattr(request, EXCHANGE_ATTRIBUTE):
        return exchange
    raise UsageError(
        f"{target_at(request.method, request.path)} asks for its claim, but no middleware has captured the request; "
        "put 'retrysafe.web.django.IdempotencyMiddleware' first in MIDDLEWARE"
    )


def find_captured(request: Any) -> AnyExchange | None:
    """Captured by whichever middleware: one around the application, or Django's own."""
    for place in (getattr(request, "scope", None), request.META):
        if place is not None and isinstance(place.get(EXCHANGE), Exchange):
            exchange: AnyExchange = place[EXCHANGE]
            return exchange
    kept: AnyExchange | None = getattr(request, EXCHANGE_ATTRIBUTE, None)
    return kept


def claim(
    exchange: AnyExchange, principal: Any, policy: Policy | None, target: str, strength: Strength = "guard"
) -> Key | None:
    """Claim the key, or, for an operation, which claims its own record, only read it. Raises ResponseReady."""
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
    return claim(exchange, principal, policy, target, strength)  # an async view's loop under WSGI serves only it


def claim_in_transaction(exchange: AnyExchange, principal: Any, wanted: TransactionRequest) -> SyncRequestTransaction:
    """Claim the key by opening a transaction, in the thread that a plain view runs in. Raises ResponseReady."""
    if isinstance(exchange, SyncExchange):
        return transaction_io.claim_in_transaction(exchange, principal, wanted)
    given = transaction_io.choose_tx(exchange, wanted)
    task = async_to_sync(exchange.identify)(principal, wanted.policy, target=wanted.target, keep=True)
    assert task is not None, "these modes have a key for each request"
    inner = SyncRequestTransaction(RequestTransaction(exchange, task), given)
    # Django's connections belong to threads: what is settled on the loop is carried back to this one.
    exchange.transaction = ThreadedRequestTransaction(
        inner, lambda function: sync_to_async(function, thread_sensitive=True)()
    )
    inner.open()
    return inner


def settle_failure(exchange: AnyExchange, error: BaseException) -> None:
    """The view failed and nobody made an answer of it: ours is stored, and sent instead of Django's error page."""
    if isinstance(exchange, AsyncExchange):
        exchange.response = async_to_sync(exchange.settle)(exchange.settle_raised(error))
    else:
        exchange.response = exchange.settle(exchange.settle_raised(error))


async def asettle_failure(exchange: AnyExchange, error: BaseException) -> None:
    if isinstance(exchange, AsyncExchange):
        exchange.response = await exchange.settle(exchange.settle_raised(error))
    else:
        exchange.response = exchange.settle(exchange.settle_raised(error))


def principal_of(scope: Callable[[Any], Any], request: Any) -> Any:
    principal = scope(request)
    return async_to_sync(_await_principal)(principal) if inspect.isawaitable(principal) else principal


async def aprincipal_of(scope: Callable[[Any], Any], request: Any) -> Any:
    """A plain callable may well load the user from the database, which Django forbids on the loop."""
    if inspect.iscoroutinefunction(scope):
        return await scope(request)
    principal = await sync_to_async(scope)(request)
    return await principal if inspect.isawaitable(principal) else principal


async def _await_principal(principal: Any) -> Any:
    return await principal


def target_of(request: Any) -> str:
    """The route's template, not the path: records and counters are named by it."""
    match = request.resolver_match
    return f"{request.method} /{match.route}" if match is not None and match.route is not None else ""
