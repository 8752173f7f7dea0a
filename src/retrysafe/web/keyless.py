"""A request without a key, where the route makes the claim: there is nothing to store, so nothing is captured.

The application gets the server's own `receive`, and runs in the server's own task. Where the route may refuse the
request because a key is missing, its answer is watched, and the refusal is sent instead (`run_keyless`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, MutableMapping
from typing import Any

from retrysafe.core.keys import Key
from retrysafe.errors import UsageError
from retrysafe.policy import Policy
from retrysafe.web.asgi_answer import RESPONSE_START, AnswerSender, Message, Send
from retrysafe.web.exchange import EXCHANGE, Exchange, scope_from_principal
from retrysafe.web.exchange_context import is_response_ready, reset_current_exchange, set_current_exchange
from retrysafe.web.paths import sanitize_target
from retrysafe.web.routes import Route
from retrysafe.web.settings import Settings
from retrysafe.web.sync_async import AsyncExchange, SyncExchange
from retrysafe.web.view import RequestView, view_from_environ, view_from_scope


class _Keyless(Exchange):
    """The exchange of a request without a key. It can be refused, but not claimed.

    Most requests without a key need little of it: the view is made when it is asked for.
    """

    key_lines = ()
    reruns = 0

    def __init__(self, settings: Settings, raw: MutableMapping[str, Any], route: Route) -> None:
        self.settings = settings
        self.route = route
        self.policy = route.policy
        self.target = route.target
        self.series = route.series
        self._raw = raw
        self._begun = time.monotonic()

    def pass_or_refuse(self, principal: Any, policy: Policy | None, target: str | None) -> None:
        """Count the request. Raises ResponseReady if it must have a key. The target is sanitized."""
        mode = (policy or self.policy).mode
        if self.uncaptured and mode != "optional":
            self.begin(policy, target)  # says what is wrong
        if mode == "generate":
            raise UsageError(
                f"{target or self.target} asks with mode='generate', but the middleware did not know that when it let "
                "a request without a key through; add the route before the first request, or name it in the "
                "middleware's routes="
            )
        scope = principal if isinstance(principal, str) else scope_from_principal(principal)
        if mode == "required" or self.claim_requested:
            self.read_key(scope, self.begin(policy, target))
            return
        self.claim_requested, self.scope = True, scope
        if target is not None:
            self.target, self.series = target, ("http", target)
        self.settings.census.count(self.target, scope, "missing", self.series[1])


class KeylessExchange(_Keyless, AsyncExchange):
    """On ASGI."""

    @property
    def view(self) -> RequestView:  # type: ignore[override]
        return view_from_scope(self._raw)

    async def claim(self, principal: Any, policy: Policy | None = None, *, target: str | None = None) -> Key | None:
        self.pass_or_refuse(principal, policy, target and sanitize_target(target))
        return None


class KeylessSyncExchange(_Keyless, SyncExchange):
    """On WSGI."""

    @property
    def view(self) -> RequestView:  # type: ignore[override]
        return view_from_environ(self._raw)

    def claim(self, principal: Any, policy: Policy | None = None, *, target: str | None = None) -> Key | None:
        self.pass_or_refuse(principal, policy, target and sanitize_target(target))
        return None


async def run_keyless(exchange: KeylessExchange, app: Any, scope: Any, receive: Any, send: Send) -> None:
    """Run the application with its exchange, and send its answer, or the refusal."""

    listed = exchange.route.listed

    def send_unless_refused(message: Message) -> Awaitable[None]:
        if listed and exchange.response is None and message["type"] == RESPONSE_START:
            exchange.refuse_if_unprotected(message["status"])
        return send(message) if exchange.response is None else _drop_message()

    token = set_current_exchange(exchange)
    try:
        await app({**scope, EXCHANGE: exchange}, receive, send_unless_refused)
    except Exception as error:
        if exchange.response is None or not is_response_ready(error):
            raise
    finally:
        reset_current_exchange(token)
    if exchange.response is not None:
        await AnswerSender.transmit(send, exchange.response)


async def _drop_message() -> None:
    """The application goes on after its answer was replaced."""
