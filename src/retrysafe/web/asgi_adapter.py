"""What the adapters of all ASGI frameworks share: find the exchange, ask it, and answer with what comes of it.

An adapter is thin on purpose. The middleware captures, stores and sends; the adapter only says *when* the key is
claimed (after authentication) and *for whom*, and turns refusals into something its framework takes for an ordinary
answer.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any, get_args

from retrysafe.core.keys import Key
from retrysafe.core.records import Answer
from retrysafe.engine.guard import Ended
from retrysafe.errors import RetrySafeError, StoreError, UsageError
from retrysafe.operations.submission import Accepted
from retrysafe.policy import Policy
from retrysafe.web import problems, status
from retrysafe.web.capture import BODILESS, REPLAYED, Response, without_shared_caching
from retrysafe.web.error_text import describe_error
from retrysafe.web.exchange import EXCHANGE, Exchange, mount_path
from retrysafe.web.exchange_context import current_exchange
from retrysafe.web.openapi import Strength
from retrysafe.web.paths import target_of
from retrysafe.web.problems import Codes
from retrysafe.web.routes import SAFE_METHODS
from retrysafe.web.sync_async import AsyncExchange

_log = logging.getLogger("retrysafe.web")

OperationAnswer = Answer | Ended | Accepted
"""What an operation gives a route: its answer, that and whether it is a replay, or that the worker will run it."""


def find_exchange(scope: Mapping[str, Any], fix: str) -> AsyncExchange | None:
    """The exchange of this request; None for a method that changes nothing. Otherwise it must be there: a route that
    asks to be protected does not run without."""
    exchange: AsyncExchange | None = scope.get(EXCHANGE)
    if exchange is None and scope["method"].upper() not in SAFE_METHODS:
        raise UsageError(
            f"{target_of(scope['method'], scope['path'])} asks for its idempotency key, but the middleware does not "
            f"capture it: {fix}; if it is there, see that neither its methods= nor its routes= leaves this route alone"
        )
    return exchange


async def claim_or_identify(
    exchange: AsyncExchange, principal: Any, policy: Policy | None, target: str, strength: Strength
) -> Key | None:
    """Claim the key, or, for an operation, which claims its own record, only read it. Raises ResponseReady."""
    if strength == "guard":
        return await exchange.claim(principal, policy, target=target)
    task = await exchange.identify(principal, policy, target=target)
    return None if task is None else task.key


async def await_if_needed(value: Any) -> Any:
    """What a callable of the user's gave, whether it was `async` or not."""
    return await value if inspect.isawaitable(value) else value


def check_strength(strength: str) -> None:
    if strength not in get_args(Strength):
        raise UsageError(
            f"strength={strength!r}: choose 'guard', 'operation' where an operation claims the key, or 'transaction' "
            "where the answer commits with the handler's own transaction"
        )


def response_for_answer(answer: OperationAnswer) -> Response:
    """An operation's answer as it goes out: status, headers and bytes as they are stored; 202 while there is none."""
    if isinstance(answer, Accepted):
        return response_for_accepted(answer)
    replayed = isinstance(answer, Ended) and answer.replayed
    told = answer.answer if isinstance(answer, Ended) else answer
    headers = list(told.headers)
    if replayed:
        headers = [pair for pair in without_shared_caching(headers) if pair[0].lower() != "idempotent-replayed"]
        headers.append(REPLAYED)
    if told.status in BODILESS:
        return Response(told.status, tuple(headers), b"")
    return Response.build(told.status, tuple(headers), told.body)


def response_for_accepted(given: Accepted) -> Response:
    """202, with the status URL where the middleware of this request serves one."""
    exchange = current_exchange()
    if exchange is None:
        return status.in_progress_response()
    return status.accepted_response(exchange.settings, mount_path(exchange.view), given.record, given.target)


def response_for_error(error: RetrySafeError, exchange: Exchange | None) -> Response:
    """The problem for an error of ours that a handler let through.

    Only where nothing is claimed: under a claim it is the handler's failure like any other, and is raised on, so that
    the middleware writes down what its policy says.
    """
    if exchange is not None and exchange.claimed:
        raise error
    problem = problems.problem_for_error(error)
    if problem.code in ("failed", "unavailable", "unknown"):
        if exchange is not None:
            exchange.log_error(error)
        else:
            _log.error("a route: %s", describe_error(error))
    wait = getattr(error, "retry_after", 1.0 if isinstance(error, StoreError) else None)
    codes, docs = (Codes(), problems.DOCS) if exchange is None else (exchange.settings.codes, exchange.settings.docs)
    return problems.build_problem_response(
        problem, codes, docs, retry_after=None if wait is None else max(1, round(wait))
    )
