"""FastAPI: the claim as a dependency that stands on your authentication, and the OpenAPI document that says so.

    app = FastAPI()
    install(app, safe=safe)

    @app.post("/payments")
    async def pay(order: Order, key: Key = Depends(idempotent(scope=current_account))): ...

`scope` is a dependency of yours. FastAPI resolves it first, so whoever could not have made the request is refused by
your own code before a key is looked at. Works on routers too: `APIRouter(dependencies=[Depends(idempotent(...))])`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from inspect import Parameter, Signature
from typing import Any, Unpack, get_args

from fastapi import Depends, FastAPI, Header, HTTPException, Request, params
from fastapi.routing import APIRoute

from retrysafe.core.keys import Key
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.policy import Policy
from retrysafe.web import asgi, openapi, starlette
from retrysafe.web.asgi import ASGIScope, Receive
from retrysafe.web.asgi_adapter import OperationAnswer, check_strength
from retrysafe.web.asgi_answer import Send
from retrysafe.web.endpoint_entry import ENTERED, REFUSED, UNKNOWN, EndpointEntry, EntryProbe, is_marked, mark_endpoint
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.key_header import HEADER
from retrysafe.web.openapi import EXTENSION, Json, ProtectionSpec, Strength
from retrysafe.web.routes import Route
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
    """FastAPI's own kind: what a dependency with `yield` looks out for."""


class IdempotentDependency:
    """The dependency. Its value is the `Key`, or None where the mode lets a request run without one."""

    def __init__(self, scope: Any, policy: Policy | None, strength: Strength, header: str) -> None:
        check_strength(strength)
        if not callable(scope) and not isinstance(scope, params.Depends):
            raise UsageError(f"scope={scope!r}: give the dependency that yields the authenticated account or tenant")
        self.policy = policy
        self.strength = strength
        self.__signature__ = _build_signature(scope, header, _build_mark(policy, strength))

    async def __call__(self, request: Request, principal: Any, idempotency_key: str | None = None) -> Key | None:
        return await claim(request, principal, self.policy, strength=self.strength, refusal=Refusal)


class TransactionalDependency(IdempotentDependency):
    """The same for `strength="transaction"`. Its value is your connection or session, in an open transaction."""

    def __init__(self, scope: Any, policy: Policy | None, tx: Any, header: str) -> None:
        super().__init__(scope, policy, "transaction", header)
        self.tx = tx

    async def __call__(  # type: ignore[override]  # FastAPI tells the two kinds of dependency apart by this
        self, request: Request, principal: Any, idempotency_key: str | None = None
    ) -> AsyncIterator[Any]:
        joined = await claim_in_transaction(request, principal, self.policy, tx=self.tx, refusal=Refusal)
        if joined is None:
            yield None
            return
        async with joined.hand_over_handle(lambda: Refusal(request.scope[EXCHANGE])) as handle:
            yield handle


def idempotent(
    scope: Any,
    policy: Policy | None = None,
    *,
    strength: Strength = "guard",
    tx: Any = None,
    header: str = HEADER,
) -> IdempotentDependency:
    """A dependency that claims the request's key: `key: Key = Depends(idempotent(scope=current_account))`.

    scope     your dependency (or a `Depends`/`Security`) for the authenticated account or tenant: str, int or UUID
    policy    what this route gets instead of the middleware's policy
    strength  "operation" where an operation claims the key itself: `return respond(await create_order(o, key=key))`
              "transaction" where the answer commits with the handler's own transaction: the value is then its
              connection or session, `session: AsyncSession = Depends(idempotent(…, strength="transaction"))`
    tx        where that transaction comes from (a sessionmaker, a pool), unless `RetrySafe(tx=…)` says so
    header    its name in the OpenAPI document, if the middleware reads another one
    """
    check_tx(strength, tx)
    if strength == "transaction":
        return TransactionalDependency(scope, policy, tx, header)
    return IdempotentDependency(scope, policy, strength, header)


def _build_signature(scope: Any, header: str, told: Json) -> Signature:
    """What FastAPI reads: the request, the user's dependency, and the header, which is here for the document only.
    That a key is missing or wrong is for us to say: any text will do for FastAPI, and none. Its type is no union, as
    FastAPI would look at each member of one for each request."""
    depends = scope if isinstance(scope, params.Depends) else Depends(scope)
    shown = Header(default=None, alias=header, description="", json_schema_extra={EXTENSION: told})
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Signature(
        [
            Parameter("request", kind, annotation=Request),
            Parameter("principal", kind, default=depends, annotation=Any),
            Parameter("idempotency_key", kind, default=shown, annotation=str),
        ]
    )


# Installing -------------------------------------------------------------------------------------


class IdempotencyMiddleware(starlette.IdempotencyMiddleware):
    """The ASGI middleware, which besides completes the application's OpenAPI document when it starts (whoever replaced
    `app.openapi` has done so by then), and puts a mark on the endpoints: FastAPI finds a request invalid after its
    route is chosen and before its endpoint is called."""

    _documented = False

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if not self._documented:
            self._documented = True
            app = scope.get("app")
            if isinstance(app, FastAPI):
                document(app)
                mark_endpoints(app.routes)
        await super().__call__(scope, receive, send)

    def make_entry_probe(self, scope: ASGIScope) -> EntryProbe | None:
        return functools.partial(entry_of, OuterRoute.from_scope(scope), scope)


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


def entry_of(before: OuterRoute, scope: ASGIScope, code: int) -> EndpointEntry:
    """Asked only where the mark has not been passed. A route that was added later gets its own now, and is unknown."""
    entry, route = starlette.entry_of(before, scope, code), scope.get("route")
    if entry is not ENTERED or not isinstance(route, APIRoute) or route is before.route:
        return entry
    marked = _mark_route(scope.get("fastapi", {}).get("effective_route_context") or route)
    return REFUSED if marked else UNKNOWN


def install(app: FastAPI, *, safe: RetrySafe, scope: Scope | None = None, **options: Unpack[Options]) -> None:
    """Everything at once: the middleware, problems for our errors, the OpenAPI document."""
    app.add_middleware(IdempotencyMiddleware, safe=safe, scope=scope, **options)
    add_problem_handlers(app)
    document(app)


# OpenAPI ----------------------------------------------------------------------------------------


def document(app: FastAPI) -> None:
    """Complete whatever `app.openapi` makes, now and whenever it is made anew. Call it again after replacing it."""
    if not isinstance(app.openapi, _OpenApiCompleter):
        app.openapi = _OpenApiCompleter(app, app.openapi)  # type: ignore[method-assign]  # the way FastAPI documents


class _OpenApiCompleter:
    def __init__(self, app: FastAPI, make: Callable[[], Json]) -> None:
        self._app = app
        self._make = make
        self._last: Json | None = None

    def __call__(self) -> Json:
        schema = self._make()
        if schema is not self._last:
            self._last = documented(schema, self._app)
        return schema


def documented(schema: Json, app: FastAPI) -> Json:
    """Complete one OpenAPI document: the operations whose header parameter carries our mark."""
    options = _middleware_options(app)
    for method, path, operation in openapi.list_operations(schema):
        told = _find_mark(operation)
        if told is not None:
            problem = openapi.reference_problem(schema)
            openapi.describe_operation(operation, _build_protection_spec(told, options, f"{method} {path}"), problem)
            _add_own_400(operation)
    for item in schema.get("paths", {}).values():
        _remove_mark(item.get("get", {}))
    return schema


def _add_own_400(operation: Json) -> None:
    """FastAPI answers 400 to a body it cannot read, and documents it nowhere. With ours there it must be said."""
    told = operation["responses"].get("400")
    if told is not None and "requestBody" in operation:
        detail = {"type": "object", "properties": {"detail": {"type": "string"}}}
        told["content"].setdefault("application/json", {"schema": detail})


def _build_mark(policy: Policy | None, strength: Strength) -> Json:
    """The mark: what is known when the route is made. The rest is known when the document is."""
    return openapi.build_extension(ProtectionSpec(policy, strength)) if policy is not None else {"strength": strength}


def _read_mark(parameter: Json) -> Any:
    return parameter.get("schema", {}).get(EXTENSION) if parameter.get("in") == "header" else None


def _find_mark(operation: Json) -> Json | None:
    return next((told for told in map(_read_mark, operation.get("parameters", ())) if told is not None), None)


def _remove_mark(operation: Json) -> None:
    """A router's dependency stands on its GET routes too, where there is nothing to claim."""
    if "parameters" in operation:
        operation["parameters"] = [one for one in operation["parameters"] if _read_mark(one) is None]


def _build_protection_spec(told: Json, options: Json, name: str) -> ProtectionSpec:
    policy = _policy_from_mark(told) if "mode" in told else _default_policy(options, name)
    common = {key: options[key] for key in ("codes", "header", "key_rule") if key in options}
    return ProtectionSpec(policy, told["strength"], quota=options.get("quota") is not None, **common)


def _policy_from_mark(told: Json) -> Policy:
    seconds = told.get("retention_seconds")  # FastAPI leaves out what is None
    failures = (lambda status, exception: True) if told["failures"] == "custom" else told["failures"]
    retention = float("inf") if seconds is None else seconds
    return Policy(mode=told["mode"], busy=told["busy"], failures=failures, retention=retention)


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
    """A route whose handler may return an operation's `Answer` as it is: `APIRouter(route_class=AnswerRoute)`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if _returns_answers(inspect.signature(endpoint, eval_str=True).return_annotation):
            options["response_model"] = None  # the stored bytes go out: there is nothing to validate or filter
        super().__init__(path, _wrap_endpoint(endpoint), **options)


def _returns_answers(annotation: Any) -> bool:
    """Whether it is one of what operations give, or a union of some of them."""
    return set(get_args(annotation) or (annotation,)) <= set(get_args(OperationAnswer))


def _wrap_endpoint(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(endpoint, "_retrysafe_answers"):
        return endpoint  # a router was included: its routes are made again
    if inspect.iscoroutinefunction(endpoint):

        @functools.wraps(endpoint)
        async def made(*args: Any, **kwargs: Any) -> Any:
            return respond_if_answer(await endpoint(*args, **kwargs))
    else:

        @functools.wraps(endpoint)
        def made(*args: Any, **kwargs: Any) -> Any:
            return respond_if_answer(endpoint(*args, **kwargs))

    made._retrysafe_answers = True  # type: ignore[attr-defined]
    return made


__all__ = [
    "AnswerRoute",
    "IdempotencyMiddleware",
    "Refusal",
    "add_problem_handlers",
    "document",
    "documented",
    "idempotent",
    "install",
    "respond",
]
