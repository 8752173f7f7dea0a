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
from retrysafe.web.django.carry import own_answer
from retrysafe.web.django.decorators import operated, transacted, transactions
from retrysafe.web.joined import Wanted
from retrysafe.web.openapi import Strength
from retrysafe.web.shortcut import Shortcut


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
        atomic.leave_alone(view, getattr(view, atomic.ATTRIBUTE, ()))
        return view

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]  # as above
        name = request.method.lower()
        handler = getattr(self, name, None)
        if handler is None:
            return  # 405 is not an answer of ours
        try:
            if self.idempotency_strength == "transaction":
                setattr(self, name, self._transacted(request, handler))
                return
            self._claim(request)
        except Shortcut:
            # An exception would be the project's handler's to shape and to report; nothing went wrong.
            setattr(self, name, lambda *_, **__: own_answer(request))
        else:
            if self.idempotency_strength == "operation":
                setattr(self, name, partial(operated, handler))
                return
            # `dispatch` looks the handler up after this: it runs inside the request's transaction, the claim did not.
            setattr(self, name, atomic.in_transactions(handler, atomic.mark_of(request)))

    def _transacted(self, request: Any, handler: Any) -> Any:
        """The handler in its transaction, which is open from now on."""
        exchange = bridge.exchange_of(request)
        request.idempotency_key = None
        if exchange is None:
            return partial(transacted, None, handler, None)
        policy, principal = self.get_idempotency_policy(request), self.idempotency_scope(request)
        wanted = Wanted(policy, bridge.target_of(request), transactions(self.idempotency_tx))
        joined = bridge.join(exchange, principal, wanted)
        request.idempotency_key = joined.joint.task.key
        mark = atomic.mark_of(request)

        def called(request: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return transacted(joined, handler, mark, request, *args, **kwargs)
            except Shortcut:
                return own_answer(request)

        return called

    def _claim(self, request: Any) -> None:
        exchange = bridge.exchange_of(request)
        request.idempotency_key = None
        if exchange is not None:
            policy, principal = self.get_idempotency_policy(request), self.idempotency_scope(request)
            target = bridge.target_of(request)
            request.idempotency_key = bridge.claim(exchange, principal, policy, target, self.idempotency_strength)
