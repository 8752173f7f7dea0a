"""FastAPI: what `idempotent(...)` returns. As a dependency it claims the key when FastAPI resolves it; as a decorator,
when FastAPI calls the endpoint (fastapi_endpoint.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from inspect import Parameter, Signature
from typing import Any

from fastapi import Depends, Header, Request, params
from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError

from retrysafe.core.keys import Key
from retrysafe.errors import UsageError
from retrysafe.policy import Policy
from retrysafe.web import openapi
from retrysafe.web.accepted_routes import mark_accepting
from retrysafe.web.asgi_adapter import check_strength
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.fastapi_endpoint import Refusal, protect_endpoint
from retrysafe.web.openapi import EXTENSION, Json, ProtectionSpec, Strength
from retrysafe.web.starlette import claim, claim_in_transaction


class IdempotentDependency:
    """The dependency, which is also the decorator. The dependency's value is the `Key`, or None if the mode lets a
    request run without one."""

    tx: Any = None

    def __init__(self, scope: Any, policy: Policy | None, strength: Strength, header: str) -> None:
        check_strength(strength)
        if not callable(scope) and not isinstance(scope, params.Depends):
            raise UsageError(f"scope={scope!r}: give the dependency that yields the authenticated account or tenant")
        self.policy = policy
        self.strength = strength
        self.depends = scope if isinstance(scope, params.Depends) else Depends(scope)
        self.__signature__ = _build_signature(self.depends, header, build_mark(policy, strength))
        # FastAPI looks at this attribute, and not at the class, to know how to call a dependency that is an object.
        vars(self)["__call__"] = self.resolve
        mark_accepting(self, policy)

    def __call__(self, endpoint: Callable[..., Any] | None = None, /, **values: Any) -> Any:
        """Decorate an endpoint; or, with the names that FastAPI calls a dependency with, claim the key."""
        return self.resolve(**values) if endpoint is None else protect_endpoint(endpoint, self)

    async def resolve(self, request: Request, principal: Any, idempotency_key: str | None = None) -> Any:
        try:
            key: Key | None = await claim(request, principal, self.policy, strength=self.strength, refusal=Refusal)
        except Refusal:
            _reject_if_unasked(request)
            raise
        return key


class TransactionalDependency(IdempotentDependency):
    """The dependency for `strength="transaction"`. Its value is your connection or session in an open transaction."""

    def __init__(self, scope: Any, policy: Policy | None, tx: Any, header: str) -> None:
        super().__init__(scope, policy, "transaction", header)
        self.tx = tx

    async def resolve(  # type: ignore[override]  # FastAPI recognises a dependency with `yield` by this
        self, request: Request, principal: Any, idempotency_key: str | None = None
    ) -> AsyncIterator[Any]:
        try:
            transaction = await claim_in_transaction(request, principal, self.policy, tx=self.tx, refusal=Refusal)
        except Refusal:
            _reject_if_unasked(request)
            raise
        if transaction is None:
            yield None
            return
        async with transaction.lend_handle(lambda: Refusal(request.scope[EXCHANGE])) as handle:
            yield handle


def _reject_if_unasked(request: Request) -> None:
    """Reject the request, instead of answering what is stored, if a header or a cookie is missing or invalid. FastAPI
    does not call a dependency whose header is missing, goes on with the next, and rejects the request only at the end:
    so a dependency that would have refused the caller may not have been asked. The same holds for the query, if the
    user's own fingerprint (`fingerprint=`) may leave it out."""
    exchange = request.scope[EXCHANGE]
    route = request.scope.get("fastapi", {}).get("effective_route_context") or request.scope.get("route")
    provider, todo = getattr(route, "dependency_overrides_provider", None), [getattr(route, "dependant", None)]
    if todo == [None] or (provider is not None and provider.dependency_overrides):
        return
    errors: list[Any] = []
    while todo:
        one: Any = todo.pop(0)
        errors += request_params_to_args(one.header_params, request.headers)[1]
        errors += request_params_to_args(one.cookie_params, request.cookies)[1]
        if exchange.route.fingerprint is not None:
            errors += request_params_to_args(one.query_params, request.query_params)[1]
        todo += one.dependencies
    if errors:
        exchange.response = None
        raise RequestValidationError(errors)


def _build_signature(depends: params.Depends, header: str, mark: Json) -> Signature:
    """The signature that FastAPI reads: the request, the user's dependency, and the header for the OpenAPI document.
    FastAPI accepts any text in the header, or none; we refuse a missing or malformed key ourselves. The type is not a
    union, because FastAPI would try each member of a union for each request. Our middleware takes the header out of
    what is resolved for each request (fastapi_routes.py)."""
    parameter = Header(default=None, alias=header, description="", json_schema_extra={EXTENSION: mark})
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Signature(
        [
            Parameter("request", kind, annotation=Request),
            Parameter("principal", kind, default=depends, annotation=Any),
            Parameter("idempotency_key", kind, default=parameter, annotation=str),
        ]
    )


def build_mark(policy: Policy | None, strength: Strength) -> Json:
    """The mark on a header parameter: what is known when the route is made. The rest is added to the document."""
    return openapi.build_extension(ProtectionSpec(policy, strength)) if policy is not None else {"strength": strength}
