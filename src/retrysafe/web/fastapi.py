"""FastAPI: a decorator that claims the key after your authentication, and the OpenAPI description of it.

    app = FastAPI()
    install(app, safe=safe)

    @app.post("/payments")
    @idempotent(scope=current_account)
    async def pay(order: Order, key: Key): ...

`scope` is your own dependency. FastAPI resolves it first, so your code refuses an unauthorized request before its key
is read. The same object is a dependency, for whole routers: `APIRouter(dependencies=[Depends(idempotent(...))])`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Unpack

from fastapi import FastAPI
from fastapi.routing import APIRoute

from retrysafe.core.deprecation import renamed_names
from retrysafe.engine.safe import RetrySafe
from retrysafe.policy import Policy
from retrysafe.web import starlette
from retrysafe.web.accepted_routes import warn_without_status
from retrysafe.web.applications import find_routes, list_applications
from retrysafe.web.asgi import ASGIScope, Receive
from retrysafe.web.asgi_answer import Send
from retrysafe.web.endpoint_entry import EntryProbe
from retrysafe.web.fastapi_dependency import IdempotentDependency, TransactionalDependency
from retrysafe.web.fastapi_endpoint import WRAPPED_FOR_ANSWERS, Refusal, returns_answers
from retrysafe.web.fastapi_openapi import complete_schema, document
from retrysafe.web.fastapi_routes import find_entry, find_mounted, list_accepting, list_modes, mark_endpoints
from retrysafe.web.key_header import DEFAULT_HEADER
from retrysafe.web.key_usage import KeyUsageStats
from retrysafe.web.keyless import KeylessExchange, run_keyless
from retrysafe.web.openapi import Strength
from retrysafe.web.routes import Route
from retrysafe.web.settings import Options, Scope
from retrysafe.web.starlette import OuterRoute, add_problem_handlers, respond, respond_if_answer
from retrysafe.web.transaction_io import check_tx


def idempotent(
    scope: Any,
    policy: Policy | None = None,
    *,
    strength: Strength = "guard",
    tx: Any = None,
    header: str = DEFAULT_HEADER,
) -> IdempotentDependency:
    """A decorator for an endpoint, below `@app.post(...)`: `@idempotent(scope=current_account)`. It claims the
    request's key when your dependencies have run. An argument of the endpoint that is annotated with `Key` (or
    `Key | None`) is the key.

    It is also a dependency, for routers and for endpoints that `yield`: `Depends(idempotent(scope=current_account))`,
    whose value is the key.

    scope     your dependency (or a `Depends`/`Security`) for the authenticated account or tenant: str, int or UUID
    policy    what this route gets instead of the middleware's policy
    strength  "operation" where an operation claims the key itself: `return await create_order.start(order, key=key)`
              "transaction" where the answer commits with the endpoint's own transaction: the endpoint's argument `tx`
              is then its connection or session (and the value of the dependency)
    tx        what opens that transaction (a sessionmaker, a pool), unless `RetrySafe(tx=…)` is given
    header    the header's name in the OpenAPI document, if the middleware reads another one
    """
    check_tx(strength, tx)
    if strength == "transaction":
        return TransactionalDependency(scope, policy, tx, header)
    return IdempotentDependency(scope, policy, strength, header)


_call = starlette.IdempotencyMiddleware.__call__  # `super()` costs more, for each request


# Installing -------------------------------------------------------------------------------------


class IdempotencyMiddleware(starlette.IdempotencyMiddleware):
    """The ASGI middleware, which also completes the application's OpenAPI document and marks the endpoints. It does so
    with the first call: by then the user may have replaced `app.openapi`. The marks are needed because FastAPI
    validates a request after it chose the route and before it calls the endpoint."""

    _documented = False

    def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        if not self._documented:
            self._documented = True
            self._prepare(list_applications(scope, self.app))
        return _call(self, scope, receive, send)

    def _prepare(self, apps: list[Any]) -> None:
        app, routes = next((one for one in apps if isinstance(one, FastAPI)), None), find_routes(apps)
        if app is not None:
            document(app)
            for mounted in find_mounted(app.routes):
                document(mounted, within=app)
        mark_endpoints(routes)
        warn_without_status(self.settings, list_accepting(routes))
        if app is not None and self.settings.scope is None and "generate" not in list_modes(routes):
            self.keyless_modes = frozenset({"optional", "required", "observe"})

    def _run_without_key(
        self, scope: ASGIScope, receive: Receive, send: Send, route: Route
    ) -> Coroutine[Any, Any, None]:
        if self.settings.scope is not None:
            return super()._run_without_key(scope, receive, send, route)
        return run_keyless(KeylessExchange(self.settings, scope, route), self.app, scope, receive, send)

    def make_entry_probe(self, scope: ASGIScope) -> EntryProbe | None:
        return functools.partial(find_entry, OuterRoute.from_scope(scope), scope)


def install(app: FastAPI, *, safe: RetrySafe, scope: Scope | None = None, **options: Unpack[Options]) -> KeyUsageStats:
    """Install everything: the middleware, problems for our errors, the OpenAPI document. Returns the census: who sends
    keys (docs/howto/rollout.md)."""
    census = options.setdefault("census", KeyUsageStats())
    app.add_middleware(IdempotencyMiddleware, safe=safe, scope=scope, **options)
    add_problem_handlers(app)
    document(app)
    return census


# Answers ----------------------------------------------------------------------------------------


class AnswerRoute(APIRoute):
    """A route whose handler may return an operation's `Answer`: `APIRouter(route_class=AnswerRoute)`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if returns_answers(inspect.signature(endpoint, eval_str=True).return_annotation):
            options["response_model"] = None  # the stored bytes are sent without validation
        super().__init__(path, _wrap_endpoint(endpoint), **options)


def _wrap_endpoint(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(endpoint, WRAPPED_FOR_ANSWERS):
        return endpoint  # already wrapped: including a router makes its routes again
    if inspect.iscoroutinefunction(endpoint):

        @functools.wraps(endpoint)
        async def respond_with_answer(*args: Any, **kwargs: Any) -> Any:
            return respond_if_answer(await endpoint(*args, **kwargs))
    else:

        @functools.wraps(endpoint)
        def respond_with_answer(*args: Any, **kwargs: Any) -> Any:
            return respond_if_answer(endpoint(*args, **kwargs))

    setattr(respond_with_answer, WRAPPED_FOR_ANSWERS, True)
    return respond_with_answer


__all__ = [
    "AnswerRoute",
    "IdempotencyMiddleware",
    "Refusal",
    "add_problem_handlers",
    "complete_schema",
    "document",
    "idempotent",
    "install",
    "respond",
]

__getattr__ = renamed_names("retrysafe.web.fastapi", {"documented": "complete_schema"})
