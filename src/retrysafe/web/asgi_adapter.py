"""What the framework adapters share: find the exchange, claim the key, build the response.

Adapters are thin. The middleware captures, stores and sends the answer. An adapter only says *when* the key is claimed
(after authentication) and *for which principal*, and turns a refusal into an ordinary answer of its framework.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any, get_args

from retrysafe.core.keys import Key
from retrysafe.core.records import Answer
from retrysafe.engine.guard import Ended
from retrysafe.engine.problem_documents import DOCS_URL
from retrysafe.errors import RetrySafeError, StoreError, UsageError
from retrysafe.operations.submission import Accepted
from retrysafe.policy import Policy
from retrysafe.web import problems, status
from retrysafe.web.capture import BODILESS, Response
from retrysafe.web.exchange import EXCHANGE, Exchange
from retrysafe.web.exchange_context import current_exchange
from retrysafe.web.openapi import Strength
from retrysafe.web.paths import build_target
from retrysafe.web.problems import Codes, describe_error
from retrysafe.web.routes import SAFE_METHODS
from retrysafe.web.sync_async import AsyncExchange
from retrysafe.web.view import read_mount_path

_log = logging.getLogger("retrysafe.web")

OperationAnswer = Answer | Ended | Accepted
"""What an operation returns to a route: its answer, the answer with a replay flag, or "the worker will run it"."""


def find_exchange(scope: Mapping[str, Any], fix: str) -> AsyncExchange | None:
    """The exchange of this request; None for a safe method. Raises UsageError if the middleware did not capture another
    method: a route that asks for protection must not run without it."""
    exchange: AsyncExchange | None = scope.get(EXCHANGE)
    if exchange is None and scope["method"].upper() not in SAFE_METHODS:
        raise UsageError(
            f"{build_target(scope['method'], scope['path'])} asks for its idempotency key, but the middleware does not "
            f"capture it: {fix}; if it is installed, check that its methods= and routes= do not leave this route out"
        )
    return exchange


async def claim_or_identify(
    exchange: AsyncExchange, principal: Any, policy: Policy | None, target: str, strength: Strength
) -> Key | None:
    """Claim the key. For an operation, which claims its own record, only read the key. Raises ResponseReady."""
    if strength == "guard":
        return await exchange.claim(principal, policy, target=target)
    task = await exchange.identify(principal, policy, target=target)
    return None if task is None else task.key


async def await_if_needed(value: Any) -> Any:
    """The result of a user's callable, sync or async."""
    return await value if inspect.isawaitable(value) else value


def check_strength(strength: str) -> None:
    if strength not in get_args(Strength):
        raise UsageError(
            f"strength={strength!r}: choose 'guard', 'operation' where an operation claims the key, or 'transaction' "
            "where the answer commits with the handler's own transaction"
        )


def response_for_answer(answer: OperationAnswer) -> Response:
    """The response for an operation's answer: status, headers and bytes as stored; 202 while there is no answer."""
    if isinstance(answer, Accepted):
        return response_for_accepted(answer)
    exchange = current_exchange()
    if exchange is not None and isinstance(answer, Ended) and not answer.replayed:
        exchange.observe_operation()
    stored = answer.answer if isinstance(answer, Ended) else answer
    if stored.status in BODILESS:
        response = Response(stored.status, tuple(stored.headers), b"")
    else:
        response = Response.build(stored.status, tuple(stored.headers), stored.body)
    return response.as_replay() if isinstance(answer, Ended) and answer.replayed else response


def response_for_accepted(accepted: Accepted) -> Response:
    """202, with the status URL if the middleware serves one."""
    exchange = current_exchange()
    if exchange is None:
        return status.build_in_progress_response()
    return status.build_accepted_response(
        exchange.settings, read_mount_path(exchange.view), accepted.record, accepted.target
    )


def response_for_error(error: RetrySafeError, exchange: Exchange | None) -> Response:
    """The problem response for a RetrySafeError that a handler raised.

    Only without a claim. With a claim the error counts as any other failure of the handler: it is raised again, and the
    middleware settles the claim as the policy says.
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
    if wait is not None and exchange is not None and problem.code == "in_progress":
        wait = exchange.estimate_retry_after(wait)
    codes, docs = (Codes(), DOCS_URL) if exchange is None else (exchange.settings.codes, exchange.settings.docs)
    return problems.build_problem_response(
        problem, codes, docs, retry_after=None if wait is None else max(1, round(wait))
    )
