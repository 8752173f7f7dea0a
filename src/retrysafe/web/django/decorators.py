"""`@idempotent`: the view claims its key just before it runs, so after authentication.

    @login_required
    @idempotent(scope=lambda request: request.user.account_id, policy=Policy(busy="wait"))
    def create_payment(request): ...

For `def` and `async def`. On a class: `@method_decorator(idempotent(...), name="post")`. With DRF, put it below
`@api_view`; for DRF's classes there is drf.IdempotentMixin.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar, overload

from retrysafe.errors import RetrySafeError, UsageError
from retrysafe.policy import Policy
from retrysafe.web.accepted_routes import mark_accepting
from retrysafe.web.asgi_adapter import OperationAnswer, check_strength, response_for_answer, response_for_error
from retrysafe.web.django import atomic, bridge, conf
from retrysafe.web.django.convert import build_own_response, to_django_response
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.openapi import Strength
from retrysafe.web.transaction_io import SyncRequestTransaction, TransactionRequest, add_handle, check_tx

View = TypeVar("View", bound=Callable[..., Any])


class ClaimRequest(NamedTuple):
    """The arguments of `@idempotent`, and how a request is claimed with them."""

    scope: conf.Scope | None
    policy: Policy | None
    target: str
    strength: Strength
    tx: Any = None

    def claim(self, request: Any) -> None:
        exchange = bridge.require_exchange(request)
        request.idempotency_key = None
        if exchange is not None:
            principal = bridge.read_principal(self.scope or conf.default_scope(), request)
            target = self.target or bridge.build_target(request)
            request.idempotency_key = bridge.claim(exchange, principal, self.policy, target, self.strength)

    def claim_in_transaction(self, request: Any) -> SyncRequestTransaction | None:
        """Open the view's transaction, on the project's own database unless `tx` is given."""
        exchange = bridge.require_exchange(request)
        request.idempotency_key = None
        if exchange is None:
            return None
        principal = bridge.read_principal(self.scope or conf.default_scope(), request)
        tx_request = TransactionRequest(self.policy, self.target or bridge.build_target(request), choose_tx(self.tx))
        transaction = bridge.claim_in_transaction(exchange, principal, tx_request)
        request.idempotency_key = transaction.flows.task.key
        return transaction

    async def aclaim(self, request: Any) -> None:
        exchange = bridge.require_exchange(request)
        request.idempotency_key = None
        if exchange is not None:
            principal = await bridge.aread_principal(self.scope or conf.default_scope(), request)
            target = self.target or bridge.build_target(request)
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
    """Make a view safe to retry. `scope` is `RETRYSAFE["SCOPE"]` unless given, or else the user's primary key. `target`
    is the URL pattern unless given. In the view, `request.idempotency_key` is the key.

    `strength="operation"`: the view calls an operation with that key and returns its answer. The operation makes the
    record, so the view does not run in a transaction of Django.

    `strength="transaction"`: the view runs in `transaction.atomic()`, and its answer commits with it. `tx` opens the
    transaction: `"django:<alias>"` of the database that holds the records, unless given."""
    check_strength(strength)
    check_tx(strength, tx)
    claim_request = ClaimRequest(scope, policy, target, strength, tx)

    def decorate(inner: Any) -> Any:
        if strength == "transaction":
            return mark_accepting(_protect_view_in_transaction(inner, claim_request), policy)
        protect = _protect_async_view if inspect.iscoroutinefunction(inner) else _protect_view
        return mark_accepting(protect(inner, claim_request), policy)

    return decorate if view is None else decorate(view)


def _protect_view(inner: Any, claim_request: ClaimRequest) -> Any:
    @wraps(inner)
    def call_protected(request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            claim_request.claim(request)
        except ResponseReady:
            return build_own_response(request)
        if claim_request.strength == "operation":
            return call_operation_view(inner, request, *args, **kwargs)
        return atomic.wrap_in_transactions(inner, mark)(request, *args, **kwargs)

    mark = atomic.mark_non_atomic(call_protected, getattr(inner, atomic.NON_ATOMIC_ATTRIBUTE, ()))
    return call_protected


def _protect_view_in_transaction(inner: Any, claim_request: ClaimRequest) -> Any:
    if inspect.iscoroutinefunction(inner):
        raise UsageError(f"{inner.__qualname__} is async, and Django's transactions are not; write `def`")

    @wraps(inner)
    def call_protected(request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            transaction = claim_request.claim_in_transaction(request)
            return call_in_transaction(transaction, inner, mark, request, *args, **kwargs)
        except ResponseReady:
            return build_own_response(request)

    mark = atomic.mark_non_atomic(call_protected, getattr(inner, atomic.NON_ATOMIC_ATTRIBUTE, ()))
    return call_protected


def call_in_transaction(
    transaction: SyncRequestTransaction | None, view: Any, mark: Any, request: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call a view in its transaction. Raises ResponseReady if the request must run again after a rollback."""
    if transaction is None:
        return view(request, *args, **add_handle(view, kwargs, None))

    def call(handle: Any) -> Any:
        opened = getattr(handle, "alias", "")
        return atomic.wrap_in_transactions(view, mark, opened)(request, *args, **add_handle(view, kwargs, handle))

    return transaction.run_handler(call)


def choose_tx(tx: Any) -> Any:
    """The given source, that of the RetrySafe object, or the project's database that holds the records."""
    if tx is not None:
        return tx
    return conf.safe().tx or f"django:{conf.database_alias()}"


def _protect_async_view(inner: Any, claim_request: ClaimRequest) -> Any:
    """Without a transaction: Django itself refuses ATOMIC_REQUESTS on async views."""

    @wraps(inner)
    async def call_protected(request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            await claim_request.aclaim(request)
        except ResponseReady:
            return build_own_response(request)
        if claim_request.strength == "operation":
            return await acall_operation_view(inner, request, *args, **kwargs)
        return await inner(request, *args, **kwargs)

    return call_protected


def call_operation_view(view: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a view that calls an operation. The answer is sent as stored, our errors as problems."""
    try:
        return to_response_if_answer(view(request, *args, **kwargs))
    except RetrySafeError as error:
        return to_django_response(response_for_error(error, bridge.require_exchange(request)))


async def acall_operation_view(view: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return to_response_if_answer(await view(request, *args, **kwargs))
    except RetrySafeError as error:
        return to_django_response(response_for_error(error, bridge.require_exchange(request)))


def to_response_if_answer(answer: Any) -> Any:
    return to_django_response(response_for_answer(answer)) if isinstance(answer, OperationAnswer) else answer
