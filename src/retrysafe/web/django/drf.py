"""Django REST framework: the claim is made in `initial()`, after authentication, permissions and throttling.

    class Payments(IdempotentMixin, APIView):
        idempotency_policy = Policy(failures="release")

        def idempotency_scope(self, request):
            return request.user.account_id

So a replay is for those only who could have made the request now: revoked is 403, expired is 401. Put the mixin first.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from retrysafe.policy import Policy
from retrysafe.web.django import atomic, bridge, conf
from retrysafe.web.django.convert import build_own_response
from retrysafe.web.django.decorators import call_in_transaction, call_operation_view, choose_tx
from retrysafe.web.openapi import Strength
from retrysafe.web.response_ready import ResponseReady
from retrysafe.web.transaction_io import TransactionRequest


class IdempotentMixin:
    """For APIView, generic views and view sets. Protects the methods the middleware protects."""

    idempotency_policy: ClassVar[Policy | None] = None
    """What this view does otherwise than `RETRYSAFE["POLICY"]`."""

    idempotency_strength: ClassVar[Strength] = "guard"
    """`operation` where the handlers call one with `request.idempotency_key` and return its answer; `transaction` where
    they run in `transaction.atomic()`, and the answer commits with it."""

    idempotency_tx: ClassVar[Any] = None
    """Where that transaction comes from; the database that holds the records, unless given."""

    def idempotency_scope(self, request: Any) -> Any:
        """Whose key it is. `RETRYSAFE["SCOPE"]`, else the user's primary key."""
        return bridge.principal_of(conf.default_scope(), request)

    def get_idempotency_policy(self, request: Any) -> Policy | None:
        """Override it where actions differ."""
        return self.idempotency_policy

    @classmethod
    def as_view(cls, *args: Any, **kwargs: Any) -> Any:
        view = super().as_view(*args, **kwargs)  # type: ignore[misc]  # the framework's class is the next one
        atomic.mark_non_atomic(view, getattr(view, atomic.NON_ATOMIC_ATTRIBUTE, ()))
        return view

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]  # as above
        name = request.method.lower()
        handler = getattr(self, name, None)
        if handler is None:
            return  # 405 is not an answer of ours
        try:
            if self.idempotency_strength == "transaction":
                setattr(self, name, self._bind_transaction(request, handler))
                return
            self._claim(request)
        except ResponseReady:
            # An exception would be the project's handler's to shape and to report; nothing went wrong.
            setattr(self, name, lambda *_, **__: build_own_response(request))
        else:
            if self.idempotency_strength == "operation":
                setattr(self, name, partial(call_operation_view, handler))
                return
            # `dispatch` looks the handler up after this: it runs inside the request's transaction, the claim did not.
            setattr(self, name, atomic.wrap_in_transactions(handler, atomic.mark_of(request)))

    def _bind_transaction(self, request: Any, handler: Any) -> Any:
        """The handler in its transaction, which is open from now on."""
        exchange = bridge.exchange_of(request)
        request.idempotency_key = None
        if exchange is None:
            return partial(call_in_transaction, None, handler, None)
        policy, principal = self.get_idempotency_policy(request), self.idempotency_scope(request)
        wanted = TransactionRequest(policy, bridge.target_of(request), choose_tx(self.idempotency_tx))
        joined = bridge.claim_in_transaction(exchange, principal, wanted)
        request.idempotency_key = joined.flows.task.key
        mark = atomic.mark_of(request)

        def called(request: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return call_in_transaction(joined, handler, mark, request, *args, **kwargs)
            except ResponseReady:
                return build_own_response(request)

        return called

    def _claim(self, request: Any) -> None:
        exchange = bridge.exchange_of(request)
        request.idempotency_key = None
        if exchange is not None:
            policy, principal = self.get_idempotency_policy(request), self.idempotency_scope(request)
            target = bridge.target_of(request)
            request.idempotency_key = bridge.claim(exchange, principal, policy, target, self.idempotency_strength)
