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
from retrysafe.web.adapting import Answered, checked_strength, of_answer, of_error
from retrysafe.web.django import atomic, bridge, conf
from retrysafe.web.django.carry import exact, own_answer
from retrysafe.web.joined import SyncJoined, Wanted, checked_tx, handed
from retrysafe.web.openapi import Strength
from retrysafe.web.shortcut import Shortcut

View = TypeVar("View", bound=Callable[..., Any])


class Ask(NamedTuple):
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

    def join(self, request: Any) -> SyncJoined | None:
        """Open the view's transaction, on the project's own database unless told otherwise."""
        exchange = bridge.exchange_of(request)
        request.idempotency_key = None
        if exchange is None:
            return None
        principal = bridge.principal_of(self.scope or conf.default_scope(), request)
        wanted = Wanted(self.policy, self.target or bridge.target_of(request), transactions(self.tx))
        joined = bridge.join(exchange, principal, wanted)
        request.idempotency_key = joined.joint.task.key
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
    checked_strength(strength)
    checked_tx(strength, tx)
    ask = Ask(scope, policy, target, strength, tx)

    def decorate(inner: Any) -> Any:
        if strength == "transaction":
            return _view_in_transaction(inner, ask)
        return _async_view(inner, ask) if inspect.iscoroutinefunction(inner) else _view(inner, ask)

    return decorate if view is None else decorate(view)


def _view(inner: Any, ask: Ask) -> Any:
    @wraps(inner)
    def protected(request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            ask.claim(request)
        except Shortcut:
            return own_answer(request)
        if ask.strength == "operation":
            return operated(inner, request, *args, **kwargs)
        return atomic.in_transactions(inner, mark)(request, *args, **kwargs)

    mark = atomic.leave_alone(protected, getattr(inner, atomic.ATTRIBUTE, ()))
    return protected


def _view_in_transaction(inner: Any, ask: Ask) -> Any:
    if inspect.iscoroutinefunction(inner):
        raise UsageError(f"{inner.__qualname__} is async, and Django's transactions are not; write `def`")

    @wraps(inner)
    def protected(request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            joined = ask.join(request)
            return transacted(joined, inner, mark, request, *args, **kwargs)
        except Shortcut:
            return own_answer(request)

    mark = atomic.leave_alone(protected, getattr(inner, atomic.ATTRIBUTE, ()))
    return protected


def transacted(joined: SyncJoined | None, view: Any, mark: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a view in its transaction. Raises Shortcut where the database undid it because of others."""
    if joined is None:
        return view(request, *args, **handed(view, kwargs, None))

    def call(handle: Any) -> Any:
        opened = getattr(handle, "alias", "")
        return atomic.in_transactions(view, mark, opened)(request, *args, **handed(view, kwargs, handle))

    return joined.run(call)


def transactions(tx: Any) -> Any:
    """A given one, the RetrySafe object's, or the project's database that holds the records."""
    if tx is not None:
        return tx
    return conf.safe().tx or f"django:{conf.database()}"


def _async_view(inner: Any, ask: Ask) -> Any:
    """Django refuses ATOMIC_REQUESTS on async views by itself, and should."""

    @wraps(inner)
    async def protected(request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            await ask.aclaim(request)
        except Shortcut:
            return own_answer(request)
        if ask.strength == "operation":
            return await aoperated(inner, request, *args, **kwargs)
        return await inner(request, *args, **kwargs)

    return protected


def operated(view: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a view that calls an operation: its answer goes out as it is stored, its errors as our problems."""
    try:
        return told(view(request, *args, **kwargs))
    except RetrySafeError as error:
        return exact(of_error(error, bridge.exchange_of(request)))


async def aoperated(view: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return told(await view(request, *args, **kwargs))
    except RetrySafeError as error:
        return exact(of_error(error, bridge.exchange_of(request)))


def told(answer: Any) -> Any:
    return exact(of_answer(answer)) if isinstance(answer, Answered) else answer
