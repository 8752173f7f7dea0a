"""FastAPI: a dependency that claims the key after your authentication, and the OpenAPI description of it.

    app = FastAPI()
    install(app, safe=safe)

    @app.post("/payments")
    async def pay(order: Order, key: Key = Depends(idempotent(scope=current_account))): ...

`scope` is your own dependency. FastAPI resolves it first, so your code refuses an unauthorized request before its key
is read. It works on routers, too: `APIRouter(dependencies=[Depends(idempotent(...))])`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from inspect import Parameter, Signature
from typing import Any, Unpack, get_args

from fastapi import Depends, FastAPI, Header, HTTPException, Request, params
from fastapi.routing import APIRoute

from retrysafe.core.deprecation import renamed_names
from retrysafe.core.keys import Key
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.policy import Policy
from retrysafe.web import asgi, openapi, starlette
from retrysafe.web.accepted_routes import is_accepting, mark_accepting, warn_without_status
from retrysafe.web.asgi import ASGIScope, Receive
from retrysafe.web.asgi_adapter import OperationAnswer, check_strength
from retrysafe.web.asgi_answer import Send
from retrysafe.web.endpoint_entry import ENTERED, REFUSED, UNKNOWN, EndpointEntry, EntryProbe, is_marked, mark_endpoint
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.key_header import DEFAULT_HEADER
from retrysafe.web.key_usage import KeyUsageStats
from retrysafe.web.openapi import EXTENSION, Json, ProtectionSpec, Strength
from retrysafe.web.routes import SAFE_METHODS, Route
from retrysafe.web.settings import Options, Scope
from retrysafe.web.starlette import (
    OuterRoute,
    add_problem_handlers,
    claim,
    claim_in_transaction,
    respond,
    respond_if_answer,
)
from retrysafe.web.transaction_io import check_tx


class Refusal(starlette.Refusal, HTTPException):
    """A FastAPI HTTPException: dependencies with `yield` may catch that class."""


class IdempotentDependency:
    """The dependency. Its value is the `Key`, or None if the mode lets a request run without one."""

    def __init__(self, scope: Any, policy: Policy | None, strength: Strength, header: str) -> None:
        check_strength(strength)
        if not callable(scope) and not isinstance(scope, params.Depends):
            raise UsageError(f"scope={scope!r}: give the dependency that yields the authenticated account or tenant")
        self.policy = policy
        self.strength = strength
        self.__signature__ = _build_signature(scope, header, _build_mark(policy, strength))
        mark_accepting(self, policy)

    async def __call__(self, request: Request, principal: Any, idempotency_key: str | None = None) -> Key | None:
        return await claim(request, principal, self.policy, strength=self.strength, refusal=Refusal)


class TransactionalDependency(IdempotentDependency):
    """The dependency for `strength="transaction"`. Its value is your connection or session in an open transaction."""

    def __init__(self, scope: Any, policy: Policy | None, tx: Any, header: str) -> None:
        super().__init__(scope, policy, "transaction", header)
        self.tx = tx

    async def __call__(  # type: ignore[override]  # FastAPI recognises a dependency with `yield` by this
        self, request: Request, principal: Any, idempotency_key: str | None = None
    ) -> AsyncIterator[Any]:
        transaction = await claim_in_transaction(request, principal, self.policy, tx=self.tx, refusal=Refusal)
        if transaction is None:
            yield None
            return
        async with transaction.lend_handle(lambda: Refusal(request.scope[EXCHANGE])) as handle:
            yield handle


def idempotent(
    scope: Any,
    policy: Policy | None = None,
    *,
    strength: Strength = "guard",
    tx: Any = None,
    header: str = DEFAULT_HEADER,
) -> IdempotentDependency:
    """A dependency that claims the request's key: `key: Key = Depends(idempotent(scope=current_account))`.

    scope     your dependency (or a `Depends`/`Security`) for the authenticated account or tenant: str, int or UUID
    policy    what this route gets instead of the middleware's policy
    strength  "operation" where an operation claims the key itself: `return respond(await create_order(o, key=key))`
              "transaction" where the answer commits with the handler's own transaction: the value is then its
              connection or session, `session: AsyncSession = Depends(idempotent(…, strength="transaction"))`
    tx        what opens that transaction (a sessionmaker, a pool), unless `RetrySafe(tx=…)` is given
    header    the header's name in the OpenAPI document, if the middleware reads another one
    """
    check_tx(strength, tx)
    if strength == "transaction":
        return TransactionalDependency(scope, policy, tx, header)
    return IdempotentDependency(scope, policy, strength, header)


def _build_signature(scope: Any, header: str, mark: Json) -> Signature:
    """The signature that FastAPI reads: the request, the user's dependency, and the header for the OpenAPI document.
    FastAPI accepts any text in the header, or none; we refuse a missing or malformed key ourselves. The type is not a
    union, because FastAPI would try each member of a union for each request."""
    depends = scope if isinstance(scope, params.Depends) else Depends(scope)
    parameter = Header(default=None, alias=header, description="", json_schema_extra={EXTENSION: mark})
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Signature(
        [
            Parameter("request", kind, annotation=Request),
            Parameter("principal", kind, default=depends, annotation=Any),
            Parameter("idempotency_key", kind, default=parameter, annotation=str),
        ]
    )


# Installing -------------------------------------------------------------------------------------


class IdempotencyMiddleware(starlette.IdempotencyMiddleware):
    """The ASGI middleware, which also completes the application's OpenAPI document and marks the endpoints. It does so
    with the first call: by then the user may have replaced `app.openapi`. The marks are needed because FastAPI
    validates a request after it chose the route and before it calls the endpoint."""

    _documented = False

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if not self._documented:
            self._documented = True
            app = scope.get("app")
            if isinstance(app, FastAPI):
                document(app)
                mark_endpoints(app.routes)
                warn_without_status(self.settings, list_accepting(app.routes))
        await super().__call__(scope, receive, send)

    def make_entry_probe(self, scope: ASGIScope) -> EntryProbe | None:
        return functools.partial(find_entry, OuterRoute.from_scope(scope), scope)


def list_accepting(routes: Iterable[Any], prefix: str = "") -> Iterator[str]:
    """The routes below these that have a dependency whose own policy answers 202."""
    for route in routes:
        contexts = getattr(route, "effective_route_contexts", None)  # of a router that was included, in newer versions
        for one in [route, *(contexts() if contexts is not None else ())]:
            methods = sorted(set(getattr(one, "methods", None) or ()) - SAFE_METHODS)
            if methods and _has_accepting(getattr(one, "dependant", None)):
                yield f"{','.join(methods)} {prefix}{one.path}"
        yield from list_accepting(getattr(route, "routes", None) or (), f"{prefix}{getattr(route, 'path', '')}")


def _has_accepting(dependant: Any) -> bool:
    """Whether our dependency is among those of a route, and theirs."""
    below = [] if dependant is None else dependant.dependencies
    return any(is_accepting(one.call) or _has_accepting(one) for one in below)


def mark_endpoints(routes: Iterable[Any]) -> None:
    """Put the mark on every endpoint below these routes."""
    for route in routes:
        contexts = getattr(route, "effective_route_contexts", None)  # of a router that was included, in newer versions
        for one in [route, *(contexts() if contexts is not None else ())]:
            _mark_route(one)
        mark_endpoints(getattr(route, "routes", None) or ())


def _mark_route(route: Any) -> bool:
    """Whether the mark was on it already."""
    dependant = getattr(route, "dependant", None)
    if dependant is None or dependant.call is None:
        return False
    marked = is_marked(dependant.call)
    dependant.call = mark_endpoint(dependant.call)
    return marked


def find_entry(before: OuterRoute, scope: ASGIScope, code: int) -> EndpointEntry:
    """Called only if no marked endpoint was called. A route that was added later is marked now, and unknown."""
    entry, route = starlette.find_entry(before, scope, code), scope.get("route")
    if entry is not ENTERED or not isinstance(route, APIRoute) or route is before.route:
        return entry
    marked = _mark_route(scope.get("fastapi", {}).get("effective_route_context") or route)
    return REFUSED if marked else UNKNOWN


def install(app: FastAPI, *, safe: RetrySafe, scope: Scope | None = None, **options: Unpack[Options]) -> KeyUsageStats:
    """Install everything: the middleware, problems for our errors, the OpenAPI document. Returns the census: who sends
    keys (docs/howto/rollout.md)."""
    census = options.setdefault("census", KeyUsageStats())
    app.add_middleware(IdempotencyMiddleware, safe=safe, scope=scope, **options)
    add_problem_handlers(app)
    document(app)
    return census


# OpenAPI ----------------------------------------------------------------------------------------


def document(app: FastAPI) -> None:
    """Complete every document that `app.openapi` makes. Call it again after replacing `app.openapi`."""
    if not isinstance(app.openapi, _OpenApiCompleter):
        app.openapi = _OpenApiCompleter(app, app.openapi)  # type: ignore[method-assign]  # as FastAPI documents it


class _OpenApiCompleter:
    def __init__(self, app: FastAPI, make: Callable[[], Json]) -> None:
        self._app = app
        self._make = make
        self._last: Json | None = None

    def __call__(self) -> Json:
        schema = self._make()
        if schema is not self._last:
            self._last = complete_schema(schema, self._app)
        return schema


def complete_schema(schema: Json, app: FastAPI) -> Json:
    """Complete one OpenAPI document: the operations whose header parameter has our mark."""
    options = _middleware_options(app)
    for method, path, operation in openapi.list_operations(schema):
        mark = _find_mark(operation)
        if mark is not None:
            problem = openapi.reference_problem(schema)
            openapi.describe_operation(operation, _build_protection_spec(mark, options, f"{method} {path}"), problem)
            _add_own_400(operation)
    for item in schema.get("paths", {}).values():
        _remove_mark(item.get("get", {}))
    return schema


def _add_own_400(operation: Json) -> None:
    """FastAPI answers 400 to an unreadable body, but does not document it. We document 400, so theirs must be added."""
    response = operation["responses"].get("400")
    if response is not None and "requestBody" in operation:
        detail = {"type": "object", "properties": {"detail": {"type": "string"}}}
        response["content"].setdefault("application/json", {"schema": detail})


def _build_mark(policy: Policy | None, strength: Strength) -> Json:
    """The mark on a header parameter: what is known when the route is made. The rest is added to the document."""
    return openapi.build_extension(ProtectionSpec(policy, strength)) if policy is not None else {"strength": strength}


def _read_mark(parameter: Json) -> Any:
    return parameter.get("schema", {}).get(EXTENSION) if parameter.get("in") == "header" else None


def _find_mark(operation: Json) -> Json | None:
    return next((mark for mark in map(_read_mark, operation.get("parameters", ())) if mark is not None), None)


def _remove_mark(operation: Json) -> None:
    """Remove the header from a GET operation: a router's dependency is also on its GET routes, which claim nothing."""
    if "parameters" in operation:
        operation["parameters"] = [one for one in operation["parameters"] if _read_mark(one) is None]


def _build_protection_spec(mark: Json, options: Json, name: str) -> ProtectionSpec:
    policy = _policy_from_mark(mark) if "mode" in mark else _default_policy(options, name)
    common = {key: options[key] for key in ("codes", "header", "key_rule") if key in options}
    return ProtectionSpec(policy, mark["strength"], quota=options.get("quota") is not None, **common)


def _policy_from_mark(mark: Json) -> Policy:
    seconds = mark.get("retention_seconds")  # FastAPI leaves out what is None
    failures = (lambda status, exception: True) if mark["failures"] == "custom" else mark["failures"]
    retention = float("inf") if seconds is None else seconds
    return Policy(mode=mark["mode"], busy=mark["busy"], failures=failures, retention=retention)


def _default_policy(options: Json, name: str) -> Policy:
    listed = options.get("routes", {}).get(name)
    if isinstance(listed, Route | Policy):
        return listed.policy if isinstance(listed, Route) else listed
    safe: RetrySafe | None = options.get("safe")
    return options.get("policy") or (safe.policy if safe else None) or Policy()


def _middleware_options(app: FastAPI) -> Json:
    for added in app.user_middleware:
        made_by: Any = added.cls
        if inspect.isclass(made_by) and issubclass(made_by, asgi.IdempotencyMiddleware):
            return dict(added.kwargs)
    return {}


# Answers ----------------------------------------------------------------------------------------


class AnswerRoute(APIRoute):
    """A route whose handler may return an operation's `Answer`: `APIRouter(route_class=AnswerRoute)`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if _returns_answers(inspect.signature(endpoint, eval_str=True).return_annotation):
            options["response_model"] = None  # the stored bytes are sent without validation
        super().__init__(path, _wrap_endpoint(endpoint), **options)


def _returns_answers(annotation: Any) -> bool:
    """True if it is one of the types that operations return, or a union of them."""
    return set(get_args(annotation) or (annotation,)) <= set(get_args(OperationAnswer))


def _wrap_endpoint(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(endpoint, "_retrysafe_answers"):
        return endpoint  # already wrapped: including a router makes its routes again
    if inspect.iscoroutinefunction(endpoint):

        @functools.wraps(endpoint)
        async def respond_with_answer(*args: Any, **kwargs: Any) -> Any:
            return respond_if_answer(await endpoint(*args, **kwargs))
    else:

        @functools.wraps(endpoint)
        def respond_with_answer(*args: Any, **kwargs: Any) -> Any:
            return respond_if_answer(endpoint(*args, **kwargs))

    respond_with_answer._retrysafe_answers = True  # type: ignore[attr-defined]
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
