"""FastAPI: a decorated endpoint's route that claims the key before FastAPI parses the body.

FastAPI resolves an endpoint in one go: it parses the body, runs the dependencies, validates every argument. Here the
same is done in two parts. First everything but the body: all dependencies, and the arguments from path, query, headers
and cookies, by FastAPI's own `solve_dependencies`. So whatever could refuse the caller has run. Then the key is
claimed. A replay ends here: its body has the fingerprint of one that was accepted. Only if the endpoint is to run,
FastAPI's own handler does the rest: the body, the call, the answer.

A route takes this way only if nothing of the user's would be passed by (`find_early_claim`). Every other route, and a
request that this way cannot finish, goes the whole way: FastAPI's handler, which calls the decorated endpoint.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

from fastapi import HTTPException, Request, Response, params
from fastapi.dependencies import utils
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import solve_dependencies
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, request_response

from retrysafe.engine.heartbeat import adopt_lease
from retrysafe.web.asgi import ASGIApp, ASGIScope, Receive
from retrysafe.web.asgi_answer import Message, Send
from retrysafe.web.endpoint_entry import ENTERED, declare_marked
from retrysafe.web.exchange import EXCHANGE, Exchange
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.fastapi_endpoint import (
    PRINCIPAL,
    REQUEST,
    Arguments,
    ProtectedEndpoint,
    find_protected,
)
from retrysafe.web.starlette import ANSWERS, AnsweredResponse, build_target, respond

_ARGUMENTS = "retrysafe.arguments"
_FINGERPRINTED = frozenset({"body", "path", "query"})
_ALWAYS_FINGERPRINTED = frozenset({"path"})
"""Also by a function of the user's (`fingerprint=`): what else it covers is not known."""
_STACKS = ("fastapi_function_astack", "fastapi_inner_astack")
"""Where FastAPI keeps the contexts of dependencies with `yield`, in the order in which it ends them."""
_NO_OVERRIDES = SimpleNamespace(dependency_overrides={})
_NOBODYS = Response()
"""FastAPI makes a response for dependencies that ask for it. None of these does (`_needs_whole`)."""
_NEEDED = {"request", "dependant", "response", "async_exit_stack", "embed_body_fields"}
"""The parameters of FastAPI's `solve_dependencies` that are used here. Versions that lack one go the whole way."""


class EarlyClaim:
    """What a route does with a request that has a key: it claims, then FastAPI goes on. `whole` is the whole way."""

    def __init__(self, whole: ASGIApp, route: Any, protected: ProtectedEndpoint) -> None:
        self.run = request_response(self._claim_and_run)
        """The early way, as an ASGI application."""
        self._whole = whole
        self.overriding: Any = route.dependency_overrides_provider or _NO_OVERRIDES
        """Tests override dependencies with functions that may ask for anything, the body too: these go the whole way.
        """
        self._reads_body = route.body_field is not None
        self._names = protected.names
        self._policy = protected.protection.policy
        self._first = _without_body(route.dependant, protected.names)
        self._finish = _build_handler(route, _only_body(route.dependant, _build_call(protected)))

    async def _claim_and_run(self, request: Request) -> Any:
        """What answers the request: a response, or another ASGI application."""
        scope, body = request.scope, None
        stack = scope.get("fastapi_inner_astack")
        if stack is None:
            return self._whole  # an older FastAPI: contexts of dependencies are the handler's own
        if self._reads_body:
            # Before the dependencies run, as FastAPI does, and with its words: dependencies may read the body, too.
            try:
                body = await request.body()
            except Exception as error:
                raise HTTPException(400, "There was an error parsing the body") from error
        solved = await solve_dependencies(
            request=request,
            dependant=self._first,
            response=_NOBODYS,
            async_exit_stack=stack,
            embed_body_fields=False,
        )
        arguments, exchange, names = solved.values, scope[EXCHANGE], self._names
        if solved.errors:
            if body is not None:
                # The client is told what is wrong with the body, too. All dependencies run again for that, so their
                # first contexts end here: one that holds a connection would wait for itself.
                await _end_contexts(scope, RequestValidationError(solved.errors))
                return _repeat_body(self._whole, body)
            if names.principal not in arguments or not are_of_fingerprint(solved.errors, exchange):
                raise RequestValidationError(solved.errors)
        principal = arguments.pop(PRINCIPAL) if names.principal is PRINCIPAL else arguments[names.principal]
        try:
            key = await exchange.claim_without_adopting(principal, self._policy, target=build_target(scope))
            grant = exchange.grant
            if grant is not None:
                if not grant.lease.fits(0.0):
                    await exchange.check_late_start(grant)
                adopt_lease(grant.lease)
        except ResponseReady:
            return AnsweredResponse(exchange)
        if exchange.response is not None:  # a replay
            return AnsweredResponse(exchange)
        if solved.errors:
            raise RequestValidationError(solved.errors)  # the claim is settled as the policy says (`invalid=`)
        if names.key:
            arguments[names.key] = key
        scope[_ARGUMENTS] = arguments
        return await self._finish(request)


def _repeat_body(whole: ASGIApp, body: bytes) -> ASGIApp:
    """The whole way for a request whose body was read."""

    async def run_whole(scope: ASGIScope, receive: Receive, send: Send) -> None:
        left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return left.pop() if left else await receive()

        await whole(scope, receive_again, send)

    return run_whole


async def _end_contexts(scope: ASGIScope, error: RequestValidationError) -> None:
    """End the contexts of all dependencies, as FastAPI does when it rejects the request."""
    for name in _STACKS:
        stack = scope.get(name)
        if stack is None:
            continue
        try:
            async with stack.pop_all():
                raise error
        except RequestValidationError as same:
            if same is not error:
                raise


def are_of_fingerprint(errors: Sequence[Any], exchange: Exchange) -> bool:
    """True if everything that is invalid is part of the request's fingerprint. Then a stored answer is the answer to
    the same invalid request. A header is not: if one is missing, a dependency that would refuse the caller has not run,
    and the request must not be answered with what is stored. Nor is a query that the user's own fingerprint may leave
    out."""
    covered = _FINGERPRINTED if exchange.route.fingerprint is None else _ALWAYS_FINGERPRINTED
    return all(one.get("loc", ("",))[0] in covered for one in errors)


# Which routes -----------------------------------------------------------------------------------------


def find_early_claim(whole: ASGIApp, route: Any) -> EarlyClaim | None:
    """The early claim of a route; None where it is not known to be the same as the whole way.

    A replay must pass whatever the whole way passes except the body. So the decorator must be the outermost, the
    handler FastAPI's own, and no dependency may need the body, or give something to an answer that it cannot see.
    """
    protected = find_protected(route.dependant.call)
    if protected is None or protected.protection.strength != "guard" or not _can_solve():
        return None
    if not _is_plain(route) or any(_needs_whole(one) for one in route.dependant.dependencies):
        return None
    if route.body_field is not None and isinstance(route.body_field.field_info, params.Form):
        return None  # FastAPI reads a form piece by piece, into files
    return EarlyClaim(whole, route, protected)


def _needs_whole(dependant: Dependant) -> bool:
    if dependant.body_params or dependant.response_param_name or dependant.background_tasks_param_name:
        return True
    return any(_needs_whole(one) for one in dependant.dependencies)


def _is_plain(route: Any) -> bool:
    """True if the route's application is the one that FastAPI makes: neither its class nor anybody later put something
    of its own around the handler."""
    made_by = type(getattr(route, "original_route", route))
    if made_by.get_route_handler is not APIRoute.get_route_handler:
        return False
    handler = _find_handler(route.app)
    own = _build_handler(route, route.dependant)
    return handler is not None and getattr(handler, "__code__", None) is own.__code__


def _find_handler(app: Any) -> Any:
    """The handler that FastAPI's `request_response` made this application of, or None if it did not."""

    async def some_handler(request: Request) -> Any: ...

    code = getattr(app, "__code__", None)
    if code is not request_response(some_handler).__code__:
        return None
    return inspect.getclosurevars(app).nonlocals.get("f")


@functools.cache
def _can_solve() -> bool:
    return hasattr(utils, "SolvedDependency") and set(inspect.signature(solve_dependencies).parameters) >= _NEEDED


# The two parts ----------------------------------------------------------------------------------------


def _without_body(dependant: Dependant, names: Arguments) -> Dependant:
    return dataclasses.replace(
        dependant,
        body_params=[],
        request_param_name=None if names.request is REQUEST else names.request,
        response_param_name=None,
        background_tasks_param_name=None,
    )


def _only_body(dependant: Dependant, call: Callable[..., Any]) -> Dependant:
    """What is left for FastAPI's handler. The answer and its background tasks belong to this part."""
    return dataclasses.replace(
        dependant,
        dependencies=[],
        path_params=[],
        query_params=[],
        header_params=[],
        cookie_params=[],
        request_param_name=REQUEST,
        http_connection_param_name=None,
        security_scopes_param_name=None,
        call=call,
    )


def _build_handler(route: Any, dependant: Dependant) -> Callable[[Request], Awaitable[Any]]:
    """FastAPI's handler for the route, with these arguments instead of its own."""
    other = copy.copy(route)
    other.dependant = dependant
    return APIRoute.get_route_handler(other)


def _build_call(protected: ProtectedEndpoint) -> Callable[..., Any]:
    """The endpoint as FastAPI calls it when its key is claimed."""
    run = protected.run

    @functools.wraps(protected.endpoint)
    async def call_claimed(**values: Any) -> Any:
        scope = values.pop(REQUEST).scope
        values |= scope.pop(_ARGUMENTS)
        scope[EXCHANGE].endpoint_entry = ENTERED
        result = await run(**values)
        return respond(result) if isinstance(result, ANSWERS) else result

    return declare_marked(call_claimed, protected.endpoint)
