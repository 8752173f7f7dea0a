"""FastAPI: the routes of an application. Finds those that are protected, marks the endpoints, and makes requests that
FastAPI rejects count as a protected endpoint's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from retrysafe.web import starlette
from retrysafe.web.accepted_routes import is_accepting
from retrysafe.web.applications import find_routes, list_inner
from retrysafe.web.asgi import ASGIApp, ASGIScope, Receive
from retrysafe.web.asgi_answer import Message, Send
from retrysafe.web.endpoint_entry import ENTERED, REFUSED, UNKNOWN, EndpointEntry, is_marked, mark_endpoint
from retrysafe.web.exchange import EXCHANGE, Exchange
from retrysafe.web.fastapi_dependency import IdempotentDependency
from retrysafe.web.fastapi_early import are_of_fingerprint, find_early_claim
from retrysafe.web.fastapi_endpoint import find_protection
from retrysafe.web.routes import SAFE_METHODS
from retrysafe.web.starlette import OuterRoute
from retrysafe.web.sync_async import AsyncExchange

_HANDLERS = "starlette.exception_handlers"
Handlers = Mapping[Any, Callable[..., Any]]


def walk_routes(routes: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every route below these that has dependencies, with the path of its mount."""
    for route in routes:
        contexts = getattr(route, "effective_route_contexts", None)  # of a router that was included, in newer versions
        for one in [route, *(contexts() if contexts is not None else ())]:
            if getattr(one, "dependant", None) is not None:
                yield prefix, one
        below = find_routes([route, *list_inner(getattr(route, "app", None))])
        yield from walk_routes(below, f"{prefix}{getattr(route, 'path', '')}")


def find_mounted(routes: Iterable[Any]) -> Iterator[FastAPI]:
    """The applications that are mounted below these routes."""
    for route in routes:
        app = getattr(route, "app", None)
        if isinstance(app, FastAPI):
            yield app
        yield from find_mounted(getattr(route, "routes", None) or ())


def list_accepting(routes: Iterable[Any]) -> Iterator[str]:
    """The routes below these whose own protection answers 202."""
    for prefix, route in walk_routes(routes):
        methods = sorted(set(getattr(route, "methods", None) or ()) - SAFE_METHODS)
        if methods and any(is_accepting(one.call) for one in _walk_dependants(route.dependant)):
            yield f"{','.join(methods)} {prefix}{route.path}"


def find_route_protection(route: Any) -> IdempotentDependency | None:
    """What protects a route: its endpoint's decorator, or a dependency of it."""
    for one in _walk_dependants(route.dependant):
        found = one.call if isinstance(one.call, IdempotentDependency) else find_protection(one.call)
        if found is not None:
            return found
    return None


def list_modes(routes: Iterable[Any]) -> set[str]:
    """The modes of all policies that routes below these have of their own."""
    found = (find_route_protection(route) for _, route in walk_routes(routes))
    return {one.policy.mode for one in found if one is not None and one.policy is not None}


def _walk_dependants(dependant: Any) -> Iterator[Any]:
    """The endpoint's own, and those of its dependencies."""
    yield dependant
    for one in dependant.dependencies:
        yield from _walk_dependants(one)


# Marking ----------------------------------------------------------------------------------------------


def mark_endpoint_only(route: Any) -> bool:
    """Put the mark on the endpoint of a route. Returns whether it was there already."""
    dependant = route.dependant
    if dependant.call is None:
        return False
    marked = is_marked(dependant.call)
    dependant.call = mark_endpoint(dependant.call)
    return marked


def mark_route(route: Any) -> bool:
    """`mark_endpoint_only`, and all else that this adapter changes of a route."""
    marked, dependant = mark_endpoint_only(route), route.dependant
    if dependant.call is None:
        return False
    for one in _walk_dependants(dependant):
        if isinstance(one.call, IdempotentDependency):
            one.header_params = []  # the document gets it from us; FastAPI need not resolve it for each request
    if find_protection(dependant.call) is not None and not isinstance(route.app, ProtectedRoute):
        route.app = ProtectedRoute(route.app, route)
    return marked


def mark_endpoints(routes: Iterable[Any], mark: Callable[[Any], bool] = mark_route) -> None:
    """Put the mark on every endpoint below these routes."""
    for _, route in walk_routes(routes):
        mark(route)


def find_entry(
    before: OuterRoute, scope: ASGIScope, code: int, *, mark: Callable[[Any], bool] = mark_route
) -> EndpointEntry:
    """Called only if no marked endpoint was called. A route that was added later is marked now, and unknown."""
    entry, route = starlette.find_entry(before, scope, code), scope.get("route")
    if entry is not ENTERED or not isinstance(route, APIRoute) or route is before.route:
        return entry
    marked = mark(scope.get("fastapi", {}).get("effective_route_context") or route)
    return REFUSED if marked else UNKNOWN


# Decorated endpoints ----------------------------------------------------------------------------------


class ProtectedRoute:
    """The application of a decorated endpoint's route. Where it can, it claims before the body is parsed
    (fastapi_early.py).

    Elsewhere the decorator claims when FastAPI calls the endpoint. FastAPI rejects an invalid request before that, so
    the decorator does not see it. But what a rejection leaves behind is the policy's to say (`invalid=`), as it is with
    the dependency: so the dependency claims the key, and the rejection is what the endpoint answered."""

    def __init__(self, app: ASGIApp, route: Any) -> None:
        self._app = app
        self._route = route
        self._handlers: Any = None
        self._watching: Any = None
        self._rejecting: APIRoute | None = None
        self.early = find_early_claim(self._run_whole, route)

    def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> Awaitable[None]:
        exchange, early = scope.get(EXCHANGE), self.early
        if early is not None and type(exchange) is AsyncExchange and not early.overriding.dependency_overrides:
            return early.run(scope, receive, send)
        return self._app(scope, receive, send) if exchange is None else self._run_whole(scope, receive, send)

    def _run_whole(self, scope: ASGIScope, receive: Receive, send: Send) -> Awaitable[None]:
        handlers = scope.get(_HANDLERS)
        if handlers is not None:
            if self._handlers is not handlers[0]:
                reject = functools.partial(self._reject, *handlers)
                self._handlers, self._watching = handlers[0], {**handlers[0], RequestValidationError: reject}
            scope[_HANDLERS] = (self._watching, handlers[1])
        return self._app(scope, receive, send)

    async def _reject(self, handlers: Handlers, statuses: Any, request: Request, error: Exception) -> Any:
        """The application's handler of rejections, or what claims the key before it. Starlette calls it as a
        response."""
        exchange = request.scope[EXCHANGE]
        if exchange.claim_requested or not _is_settled_by_policy(error, exchange):
            return await _handle(handlers, request, error)

        async def handle_first(again: Request, _: Exception) -> Any:
            return await _handle(handlers, request, error)

        async def receive_again() -> Message:
            return {"type": "http.request", "body": await request.body(), "more_body": False}

        async def claim_and_reject(scope: ASGIScope, receive: Receive, send: Send) -> None:
            # A principal that cannot be resolved is rejected once more: the client gets the first rejection.
            watched = ({**handlers, RequestValidationError: handle_first}, statuses)
            await self._find_rejecting().app({**scope, _HANDLERS: watched}, receive_again, send)

        return claim_and_reject

    def _find_rejecting(self) -> APIRoute:
        """A route with the same path and principal, which claims and then rejects. It is made when it is needed."""
        if self._rejecting is None:
            route = self._route
            self._rejecting = APIRoute(
                route.path,
                _reject_again,
                dependencies=[Depends(find_protection(route.dependant.call))],
                dependency_overrides_provider=route.dependency_overrides_provider,
            )
        return self._rejecting


def _is_settled_by_policy(error: Exception, exchange: Exchange) -> bool:
    """True if FastAPI itself rejected what the fingerprint covers. A dependency may raise the same class to refuse the
    caller, and one whose header is missing was not asked: then nothing is claimed, and nothing stored is answered."""
    if not isinstance(error, RequestValidationError) or not are_of_fingerprint(error.errors(), exchange):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_globals.get("__name__") == APIRoute.__module__


async def _reject_again() -> None:
    raise RequestValidationError([])


async def _handle(handlers: Handlers, request: Request, error: Exception) -> Any:
    """What the application makes of the error, as Starlette chooses its handlers."""
    handler = next((handlers[one] for one in type(error).__mro__ if one in handlers), None)
    if handler is None:
        raise error
    if inspect.iscoroutinefunction(handler):
        return await handler(request, error)
    answered = await run_in_threadpool(handler, request, error)
    return await answered if inspect.isawaitable(answered) else answered
