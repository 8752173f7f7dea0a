"""`@idempotent`: the view claims its key when it is about to run, so under whatever authenticates.

    @login_required
    @idempotent(scope=lambda request: request.user.account_id, policy=Policy(busy="wait"))
    def create_payment(request): ...

For `def` and `async def`. On a class: `@method_decorator(idempotent(...), name="post")`. With DRF's `@api_view` it
stands below it; for its classes there is drf.IdempotentMixin.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar, overload

from retrysafe.errors import RetrySafeError, UsageError
from retrysafe.policy import Policy
from retrysafe.web.asgi_adapter import OperationAnswer, check_strength, response_for_answer, response_for_error
from retrysafe.web.django import atomic, bridge, conf
from retrysafe.web.django.convert import build_own_response, to_django_response
from retrysafe.web.openapi import Strength
from retrysafe.web.response_ready import ResponseReady
from retrysafe.web.transaction_io import SyncRequestTransaction, TransactionRequest, add_handle, check_tx

View = TypeVar("View", bound=Callable[..., Any])


class ClaimRequest(NamedTuple):
    """What a view asks for."""

    scope: conf.Scope | None
    policy: Policy | None
    target: str
    strength: Strength
    tx: Any = None

    def claim(self, request: Any) -> None:
        exchange = bridge.exchange_of(request)
        request.idempotency_key = None
        if exchange is not None:
            principal = bridge.principal_of(self.scope or conf.default_scope(), request)
            target = self.target or bridge.target_of(request)
            request.idempotency_key = bridge.claim(exchange, principal, self.policy, target, self.strength)

    def claim_in_transaction(self, request: Any) -> SyncRequestTransaction | None:
        """Open the view's transaction, on the project's own database unless told otherwise."""
        exchange = bridge.exchange_of(request)
        request.idempotency_key = None
        if exchange is None:
            return None
        principal = bridge.principal_of(self.scope or conf.default_scope(), request)
        wanted = TransactionRequest(self.policy, self.target or bridge.target_of(request), choose_tx(self.tx))
        joined = bridge.claim_in_transaction(exchange, principal, wanted)
        request.idempotency_key = joined.flows.task.key
        return joined

    async def aclaim(self, request: Any) -> None:
        exchange = bridge.exchange_of(request)
        request.idempotency_key = None
        if exchange is not None:
            principal = await bridge.aprincipal_of(self.scope or conf.default_scope(), request)
            target = self.target or bridge.target_of(request)
            request.idempotency_key = await bridge.aclaim(exchange, principal, self.policy, target, self.strength)


@overload
def idempotent(view: View, /) -> View: ...
@overload
def idempotent(
    *,
    scope: conf.Scope | None = None,
    policy: Policy | None = None,
    target: str = "",
    strength: Strength = "guard",
    tx: Any = None,
) -> Callable[[View], View]: ...
def idempotent(
    view: Any = None,
    /,
    *,
    scope: conf.Scope | None = None,
    policy: Policy | None = None,
    target: str = "",
    strength: Strength = "guard",
    tx: Any = None,
) -> Any:
    """Make a view safe to call again. `scope` is `RETRYSAFE["SCOPE"]`, else the user's primary key; `target` is the
    URL pattern unless given. The view finds its key as `request.idempotency_key`.

    `strength="operation"`: the view calls an operation with that key and returns its answer; the operation makes the
    record, so it is not inside a transaction of Django's.

    `strength="transaction"`: the view runs in `transaction.atomic()`, and its answer commits with it. `tx` is where the
    transaction comes from: `"django:<alias>"` of the database that holds the records, unless given."""
    check_strength(strength)
    check_tx(strength, tx)
    ask = ClaimRequest(scope, policy, target, strength, tx)

    def decorate(inner: Any) -> Any:
        if strength == "transaction":
            return _protect_view_in_transaction(inner, ask)
        return _protect_async_view(inner, ask) if inspect.iscoroutinefunction(inner) else _protect_view(inner, ask)

    return decorate if view is None else decorate(view)


def _protect_view(inner: Any, ask: ClaimRequest) -> Any:
    @wraps(inner)
    def protected(request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            ask.claim(request)
        except ResponseReady:
            return build_own_response(request)
        if ask.strength == "operation":
            return call_operation_view(inner, request, *args, **kwargs)
        return atomic.wrap_in_transactions(inner, mark)(request, *args, **kwargs)

    mark = atomic.mark_non_atomic(protected, getattr(inner, atomic.NON_ATOMIC_ATTRIBUTE, ()))
    return protected


def _protect_view_in_transaction(inner: Any, ask: ClaimRequest) -> Any:
    if inspect.iscoroutinefunction(inner):
        raise UsageError(f"{inner.__qualname__} is async, and Django's transactions are not; write `def`")

    @wraps(inner)
    def protected(request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            joined = ask.claim_in_transaction(request)
            return call_in_transaction(joined, inner, mark, request, *args, **kwargs)
        except ResponseReady:
            return build_own_response(request)

    mark = atomic.mark_non_atomic(protected, getattr(inner, atomic.NON_ATOMIC_ATTRIBUTE, ()))
    return protected


def call_in_transaction(
    joined: SyncRequestTransaction | None, view: Any, mark: Any, request: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call a view in its transaction. Raises ResponseReady where the database undid it because of others."""
    if joined is None:
        return view(request, *args, **add_handle(view, kwargs, None))

    def call(handle: Any) -> Any:
        opened = getattr(handle, "alias", "")
        return atomic.wrap_in_transactions(view, mark, opened)(request, *args, **add_handle(view, kwargs, handle))

    return joined.run_handler(call)


def choose_tx(tx: Any) -> Any:
    """A given one, the RetrySafe object's, or the project's database that holds the records."""
    if tx is not None:
        return tx
    return conf.safe().tx or f"django:{conf.database_alias()}"


def _protect_async_view(inner: Any, ask: ClaimRequest) -> Any:
    """Django refuses ATOMIC_REQUESTS on async views by itself, and should."""

    @wraps(inner)
    async def protected(request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            await ask.aclaim(request)
        except ResponseReady:
            return build_own_response(request)
        if ask.strength == "operation":
            return await acall_operation_view(inner, request, *args, **kwargs)
        return await inner(request, *args, **kwargs)

    return protected


def call_operation_view(view: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a view that calls an operation: its answer goes out as it is stored, its errors as our problems."""
    try:
        return to_response_if_answer(view(request, *args, **kwargs))
    except RetrySafeError as error:
        return to_django_response(response_for_error(error, bridge.exchange_of(request)))


async def acall_operation_view(view: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return to_response_if_answer(await view(request, *args, **kwargs))
    except RetrySafeError as error:
        return to_django_response(response_for_error(error, bridge.exchange_of(request)))


def to_response_if_answer(answer: Any) -> Any:
    return to_django_response(response_for_answer(answer)) if isinstance(answer, OperationAnswer) else answer
