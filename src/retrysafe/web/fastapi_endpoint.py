"""FastAPI: what `@idempotent(...)` makes of an endpoint.

FastAPI resolves the principal with the endpoint's other arguments. So the request is authenticated and allowed before
its key is claimed, and no dependency of ours has to be resolved. If the answer is stored already, the endpoint is not
called, and FastAPI gets a bare response: nothing is raised, so dependencies with `yield` end as usual.

Most routes claim before they come here (fastapi_early.py). This is the way of the others, and of requests without a
key.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, Protocol, get_args, get_origin, get_type_hints

from fastapi import HTTPException, Request, params
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from retrysafe.core.keys import Key
from retrysafe.errors import UsageError
from retrysafe.policy import Policy
from retrysafe.web import starlette
from retrysafe.web.accepted_routes import mark_accepting
from retrysafe.web.asgi_adapter import OperationAnswer, claim_or_identify, find_exchange
from retrysafe.web.endpoint_entry import ENTERED, declare_marked
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.keyless import KeylessExchange
from retrysafe.web.openapi import Strength
from retrysafe.web.starlette import (
    ANSWERS,
    INSTALL_HINT,
    AnsweredResponse,
    build_target,
    respond,
    respond_if_answer,
)
from retrysafe.web.sync_async import AsyncExchange
from retrysafe.web.transaction_io import TX_ARGUMENT, TransactionRequest, aclaim_in_transaction

Endpoint = Callable[..., Any]

REQUEST = "retrysafe_request"
PRINCIPAL = "retrysafe_principal"
"""The names of arguments that FastAPI resolves for us, where the endpoint did not ask for them."""
_PROTECTED = "_retrysafe_protected"


WRAPPED_FOR_ANSWERS = "_retrysafe_answers"
"""The mark of an endpoint that an `AnswerRoute` has wrapped."""


class Refusal(starlette.Refusal, HTTPException):
    """A FastAPI HTTPException: dependencies with `yield` may catch that class."""


class Protection(Protocol):
    """What `idempotent(...)` was given."""

    policy: Policy | None
    strength: Strength
    tx: Any
    depends: params.Depends
    """The user's dependency for the principal."""


class Arguments(NamedTuple):
    """The names under which the endpoint's call brings what the claim needs, and what the claim gives."""

    request: str
    principal: str
    key: str
    """Empty if the endpoint does not ask for its key."""
    tx: bool
    """True if the endpoint asks for its transaction."""


class ProtectedEndpoint(NamedTuple):
    """What `idempotent(...)` has made of an endpoint."""

    endpoint: Endpoint
    run: Endpoint
    """The endpoint as an async function."""
    names: Arguments
    protection: Protection
    wrapper: Endpoint
    """What FastAPI calls."""


def protect_endpoint(endpoint: Endpoint, protection: Protection) -> Endpoint:
    """The endpoint as FastAPI is to call it: it claims the key first. FastAPI reads the signature that this makes."""
    _check_endpoint(endpoint)
    signature, names = plan_arguments(read_signature(endpoint), protection)
    wrap = _wrap_in_transaction if protection.strength == "transaction" else _wrap_guarded
    run = _make_async(endpoint)
    call_protected = wrap(endpoint, run, names, protection)
    call_protected.__signature__ = signature  # type: ignore[attr-defined]
    setattr(call_protected, _PROTECTED, ProtectedEndpoint(endpoint, run, names, protection, call_protected))
    return declare_marked(mark_accepting(call_protected, protection.policy), endpoint)


def find_protection(endpoint: Any) -> Any:
    """What the endpoint's decorator was given, or None. `functools.wraps` hands it on to decorators above."""
    found: ProtectedEndpoint | None = getattr(endpoint, _PROTECTED, None)
    return None if found is None else found.protection


def find_protected(endpoint: Any) -> ProtectedEndpoint | None:
    """The protected endpoint, if no other decorator stands above ours."""
    found: ProtectedEndpoint | None = getattr(endpoint, _PROTECTED, None)
    return found if found is not None and found.wrapper is endpoint else None


def _wrap_guarded(endpoint: Endpoint, run: Endpoint, names: Arguments, protection: Protection) -> Endpoint:
    """Claim the key, or only read it for an operation, and call the endpoint."""
    policy, strength = protection.policy, protection.strength

    @functools.wraps(endpoint)
    async def call_protected(**values: Any) -> Any:
        scope, principal = _take_arguments(endpoint, names, values)
        exchange, key = scope.get(EXCHANGE) or find_exchange(scope, INSTALL_HINT), None
        if exchange is not None:
            try:
                if isinstance(exchange, KeylessExchange):
                    exchange.pass_or_refuse(principal, policy, build_target(scope))
                else:
                    key = await claim_or_identify(exchange, principal, policy, build_target(scope), strength)
            except ResponseReady as stop:
                return _answer_for(call_protected, scope, exchange, stop)
            exchange.endpoint_entry = ENTERED
        if names.key:
            values[names.key] = key
        result = await run(**values)
        return respond(result) if isinstance(result, ANSWERS) else result

    return call_protected


def _wrap_in_transaction(endpoint: Endpoint, run: Endpoint, names: Arguments, protection: Protection) -> Endpoint:
    """Claim the key by opening a transaction, and call the endpoint in it."""
    policy, tx = protection.policy, protection.tx

    @functools.wraps(endpoint)
    async def call_protected(**values: Any) -> Any:
        def run_with(key: Key | None, handle: Any) -> Any:
            given = ({names.key: key} if names.key else {}) | ({TX_ARGUMENT: handle} if names.tx else {})
            return run(**values, **given)

        scope, principal = _take_arguments(endpoint, names, values)
        exchange = find_exchange(scope, INSTALL_HINT)
        if exchange is None:
            return respond_if_answer(await run_with(None, None))
        asked = TransactionRequest(policy, build_target(scope), tx)
        try:
            transaction = await aclaim_in_transaction(exchange, principal, asked, endpoint)
            exchange.endpoint_entry = ENTERED
            result = await transaction.run_handler(functools.partial(run_with, transaction.flows.task.key))
        except ResponseReady as stop:
            return _answer_for(call_protected, scope, exchange, stop)
        return respond_if_answer(result)

    return call_protected


def _answer_for(wrapper: Endpoint, scope: Any, exchange: AsyncExchange, stop: ResponseReady) -> AnsweredResponse:
    """What our wrapper returns if the endpoint is not called. A decorator above ours must not go on, as if it had been:
    it would do once more what it does after the endpoint."""
    called = scope.get("endpoint")
    if called is wrapper or (hasattr(called, WRAPPED_FOR_ANSWERS) and called.__wrapped__ is wrapper):
        return AnsweredResponse(exchange)
    raise Refusal(exchange) from stop


def _make_async(endpoint: Endpoint) -> Endpoint:
    return endpoint if inspect.iscoroutinefunction(endpoint) else functools.partial(run_in_threadpool, endpoint)


def _take_arguments(endpoint: Endpoint, names: Arguments, values: dict[str, Any]) -> tuple[Any, Any]:
    """The request's scope and the principal. What the endpoint did not ask for is taken out of the values."""
    request = values.pop(REQUEST, None) if names.request is REQUEST else values.get(names.request)
    if request is None:
        raise UsageError(
            f"{endpoint.__qualname__} was called without a request; to call the function itself, without its "
            "protection, write .__wrapped__(...)"
        )
    return request.scope, values.pop(PRINCIPAL) if names.principal is PRINCIPAL else values[names.principal]


# The signature ----------------------------------------------------------------------------------------


def read_signature(endpoint: Endpoint) -> Signature:
    """The endpoint's signature, with its annotations as types. One that cannot be read yet stays as it is written, and
    is FastAPI's to judge."""
    signature = inspect.signature(endpoint)
    names = getattr(inspect.unwrap(endpoint), "__globals__", {})
    return signature.replace(
        parameters=[
            one.replace(annotation=_read_annotation(one.annotation, names)) for one in signature.parameters.values()
        ],
        return_annotation=_read_annotation(signature.return_annotation, names),
    )


def _read_annotation(annotation: Any, names: dict[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        written = SimpleNamespace(__annotations__={"one": annotation})
        return get_type_hints(written, globalns=names, include_extras=True)["one"]
    except Exception:
        return annotation


def plan_arguments(signature: Signature, protection: Protection) -> tuple[Signature, Arguments]:
    """The signature for FastAPI, and the names. The key and the transaction are ours to give, so FastAPI does not see
    them. A principal or request that the endpoint asks for anyway is not resolved a second time."""
    request, principal, key, tx, left = "", "", "", False, []
    for one in signature.parameters.values():
        if _is_key(one.annotation):
            key = one.name
            continue
        if protection.strength == "transaction" and one.name == TX_ARGUMENT and _find_depends(one) is None:
            tx = True
            continue
        if inspect.isclass(one.annotation) and issubclass(one.annotation, Request):
            request = one.name
        if protection.depends.use_cache and _find_depends(one) == protection.depends:
            principal = one.name
        left.append(one.replace(kind=Parameter.KEYWORD_ONLY))
    if not request:
        left.append(Parameter(REQUEST, Parameter.KEYWORD_ONLY, annotation=Request))
    if not principal:
        left.append(Parameter(PRINCIPAL, Parameter.KEYWORD_ONLY, default=protection.depends, annotation=Any))
    returned = Response if returns_answers(signature.return_annotation) else signature.return_annotation
    planned = signature.replace(parameters=left, return_annotation=returned)
    return planned, Arguments(request or REQUEST, principal or PRINCIPAL, key, tx)


def _is_key(annotation: Any) -> bool:
    """`Key`, or `Key | None` where the mode lets requests run without one."""
    return annotation is Key or (Key in get_args(annotation) and get_origin(annotation) is not Annotated)


def _find_depends(parameter: Parameter) -> Any:
    """The `Depends(...)` of a parameter, in either way of writing it."""
    if isinstance(parameter.default, params.Depends):
        return parameter.default
    if get_origin(parameter.annotation) is Annotated:
        return next((one for one in get_args(parameter.annotation) if isinstance(one, params.Depends)), None)
    return None


def returns_answers(annotation: Any) -> bool:
    """True if it is one of the types that operations return, or a union of them: FastAPI must not validate them."""
    return set(get_args(annotation) or (annotation,)) <= set(get_args(OperationAnswer))


def _check_endpoint(endpoint: Any) -> None:
    if not callable(endpoint):
        raise UsageError(f"@idempotent(...) protects a function, but was given {endpoint!r}")
    if inspect.isgeneratorfunction(endpoint) or inspect.isasyncgenfunction(endpoint):
        raise UsageError(
            f"{endpoint.__qualname__} yields its answer in parts, so nothing can be claimed when it is called; write "
            "dependencies=[Depends(idempotent(...))] instead of the decorator"
        )
