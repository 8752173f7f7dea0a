"""Django REST framework: the claim is made in `initial()`, after authentication, permissions and throttling.

    class Payments(IdempotentMixin, APIView):
        idempotency_policy = Policy(failures="release")

        def idempotency_scope(self, request):
            return request.user.account_id

So only a client that may make the request now gets a replay: revoked access is 403, an expired token is 401. Put the
mixin first.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from retrysafe.policy import Policy
from retrysafe.web.accepted_routes import mark_accepting
from retrysafe.web.django import atomic, bridge, conf
from retrysafe.web.django.convert import build_own_response
from retrysafe.web.django.decorators import call_in_transaction, call_operation_view, choose_tx
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.openapi import Strength
from retrysafe.web.transaction_io import TransactionRequest


class IdempotentMixin:
    """For APIView, generic views and view sets. Protects the methods that the middleware protects."""

    idempotency_policy: ClassVar[Policy | None] = None
    """Replaces `RETRYSAFE["POLICY"]` for this view."""

    idempotency_strength: ClassVar[Strength] = "guard"
    """`operation`: the handlers call an operation with `request.idempotency_key` and return its answer. `transaction`:
    they run in `transaction.atomic()`, and the answer commits with it."""

    idempotency_tx: ClassVar[Any] = None
    """What opens that transaction; the database that holds the records, unless given."""

    def idempotency_scope(self, request: Any) -> Any:
        """The principal. By default `RETRYSAFE["SCOPE"]`, or else the user's primary key."""
        return bridge.read_principal(conf.default_scope(), request)

    def get_idempotency_policy(self, request: Any) -> Policy | None:
        """The policy of this request. Override it if actions differ."""
        return self.idempotency_policy

    @classmethod
    def as_view(cls, *args: Any, **kwargs: Any) -> Any:
        view = super().as_view(*args, **kwargs)  # type: ignore[misc]  # the framework's class is the next one
        atomic.mark_non_atomic(view, getattr(view, atomic.NON_ATOMIC_ATTRIBUTE, ()))
        return mark_accepting(view, cls.idempotency_policy)

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]  # as above
        name = request.method.lower()
        handler = getattr(self, name, None)
        if handler is None:
            return  # DRF answers 405
        try:
            if self.idempotency_strength == "transaction":
                setattr(self, name, self._bind_transaction(request, handler))
                return
            self._claim(request)
        except ResponseReady:
            # Not an exception: the project's exception handler would change and report it, but nothing went wrong.
            setattr(self, name, lambda *_, **__: build_own_response(request))
        else:
            if self.idempotency_strength == "operation":
                setattr(self, name, partial(call_operation_view, handler))
                return
            # `dispatch` gets the handler after this: it runs inside the request's transaction, and the claim did not.
            setattr(self, name, atomic.wrap_in_transactions(handler, atomic.find_mark(request)))

    def _bind_transaction(self, request: Any, handler: Any) -> Any:
        """Open the transaction, and return the handler bound to it."""
        exchange = bridge.require_exchange(request)
        request.idempotency_key = None
        if exchange is None:
            return partial(call_in_transaction, None, handler, None)
        policy, principal = self.get_idempotency_policy(request), self.idempotency_scope(request)
        tx_request = TransactionRequest(policy, bridge.build_target(request), choose_tx(self.idempotency_tx))
        transaction = bridge.claim_in_transaction(exchange, principal, tx_request)
        request.idempotency_key = transaction.flows.task.key
        mark = atomic.find_mark(request)

        def call_handler(request: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return call_in_transaction(transaction, handler, mark, request, *args, **kwargs)
            except ResponseReady:
                return build_own_response(request)

        return call_handler

    def _claim(self, request: Any) -> None:
        exchange = bridge.require_exchange(request)
        request.idempotency_key = None
        if exchange is not None:
            policy, principal = self.get_idempotency_policy(request), self.idempotency_scope(request)
            target = bridge.build_target(request)
            request.idempotency_key = bridge.claim(exchange, principal, policy, target, self.idempotency_strength)
