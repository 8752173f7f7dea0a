"""The console: a pure function from a request to an answer, and the shells that servers call."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from retrysafe.console import csrf
from retrysafe.console.access import LOOK, Authenticate, Authorize, Operator, allow_all
from retrysafe.console.asgi import AsgiShell
from retrysafe.console.form_words import find_way_back, translate
from retrysafe.console.headers import drop_body, harden, say
from retrysafe.console.messages import ConsoleRequest, ConsoleResponse, redirect
from retrysafe.console.route_list import ACTIONS, PAGES
from retrysafe.console.routing import PageTable
from retrysafe.console.store_verdict import StoreVerdict
from retrysafe.console.visit import Forbidden, Visit
from retrysafe.console.wsgi import WsgiShell, mount_beside
from retrysafe.core.keys import observed_namespace
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import NotUncertain, RetrySafeError, StoreError, StoreOutage, UsageError
from retrysafe.operators.errors import CommandError, NotFound, OutOfReach

_log = logging.getLogger("retrysafe.console")

NEED_AUTHENTICATE = (
    "a console shows keys and can change them, so it is not built without a check of who asks: give "
    "authenticate=, a function of a Request that returns an Operator, or None for nobody"
)


class Console:
    """`authenticate(request)` returns the Operator, or None. `actions=True` adds the routes that change something;
    `authorize(operator, action, record)` says who may do what. `census` are the key usage statistics of this process
    (the `census` of a middleware), or files with those of others. `request_log` is the file of a RequestLog, for the
    page of developers. `trace_url` is an address with `{trace_id}` in it. `origins` are addresses of this console
    behind a proxy that changes the host. `login_url` is where a visitor without a session is sent."""

    def __init__(
        self,
        safe: RetrySafe,
        *,
        authenticate: Authenticate | None = None,
        authorize: Authorize | None = None,
        actions: bool = False,
        census: Sequence[Any] = (),
        request_log: str | Path | None = None,
        trace_url: str = "",
        origins: Iterable[str] = (),
        login_url: str = "",
    ) -> None:
        if authenticate is None or not callable(authenticate):
            raise UsageError(NEED_AUTHENTICATE)
        check_sync("authenticate", authenticate)
        check_sync("authorize", authorize)
        if not isinstance(safe, RetrySafe):
            raise UsageError(f"Console({safe!r}): give your RetrySafe object")
        if trace_url and "{trace_id}" not in trace_url:
            raise UsageError(f"trace_url={trace_url!r}: write {{trace_id}} where the id of the trace belongs")
        safe.store  # noqa: B018  # the console is sync: an object without a sync store is refused here
        self.safe = safe
        self.authenticate = authenticate
        self.authorize = authorize or allow_all
        self.actions = bool(actions)
        self.census = tuple(census)
        self.request_log = Path(request_log) if request_log is not None else None
        self.trace_url = trace_url
        self.origins = frozenset(origins)
        self.login_url = login_url
        self.namespaces = (safe.namespace, observed_namespace(safe.namespace))
        self.routes = PageTable((*PAGES, *ACTIONS) if self.actions else PAGES)
        self.verdict = StoreVerdict(safe.url)
        self.asgi = AsgiShell(self.handle)
        self.wsgi = WsgiShell(self.handle)

    def mount_wsgi(self, app: Callable[..., Any], path: str) -> Callable[..., Any]:
        """A WSGI application that answers below `path` itself and passes everything else on."""
        return mount_beside(app, self.wsgi, path)

    def handle(self, request: ConsoleRequest) -> ConsoleResponse:
        """Answer one request. Raises nothing."""
        try:
            response = self._answer(request)
        except Exception:
            _log.exception("the console failed on %s %s", request.method, request.path)
            response = say(500, "the console failed; its log says why")
        if request.method == "HEAD":
            response = drop_body(response)
        return harden(response)

    def _answer(self, request: ConsoleRequest) -> ConsoleResponse:
        operator = self.authenticate(request)
        if operator is None:
            return self._send_to_login(request)
        if not isinstance(operator, Operator) or not (isinstance(operator.name, str) and operator.name.strip()):
            # True, a name, the coroutine of an `async def`, or an empty name: none of them says who it is.
            raise TypeError(f"authenticate returned {operator!r}: return an Operator, or None; it cannot be async")
        visit = Visit(self, request, operator)
        try:
            return self._answer_operator(visit)
        except RetrySafeError as error:
            looks = request.method in ("GET", "HEAD")
            unchanged = isinstance(error, CommandError | UsageError) or looks
            # A store that answers and refuses to look for a text: PostgreSQL and a NUL.
            refused = looks and isinstance(error, StoreError) and not isinstance(error, StoreOutage)
            status = 400 if refused else find_status(error)
            return visit.render(
                "problem.html", status, title="Not done", unchanged=unchanged, **describe_error(error, request)
            )

    def _answer_operator(self, visit: Visit) -> ConsoleResponse:
        request = visit.request
        visit.check(LOOK)
        found = self.routes.find(request.method, request.path)
        if found is None:
            return self._refuse_route(visit)
        if found[0].acts:
            forgery = csrf.find_forgery(request, self.origins)
            if forgery:
                raise Forbidden(forgery)
        return self.routes.answer(visit, found)

    def _send_to_login(self, request: ConsoleRequest) -> ConsoleResponse:
        if self.login_url and request.method == "GET" and not request.is_fragment:
            return redirect(self.login_url)
        return say(401, "log in first" if request.method in ("GET", "HEAD") else "log in first; nothing was done")

    def _refuse_route(self, visit: Visit) -> ConsoleResponse:
        if visit.request.method not in ("GET", "HEAD") and not self.actions:
            raise Forbidden("this console is read-only: it was built without actions=True")
        raise NotFound(f"there is no page {visit.request.path!r}")


def check_sync(name: str, function: Any) -> None:
    """Refuse an `async def`: what it returns is true, whatever it would have answered."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004  # not whether it can be called
        raise UsageError(f"{name}={function!r} is async, and the console calls it without await: give a plain def")


def describe_error(error: RetrySafeError, request: ConsoleRequest) -> dict[str, Any]:
    """What the page of an error says, and where it leads back to."""
    back, back_label = find_way_back(request.method, request.path)
    hint = translate(str(getattr(error, "hint", "")), request.path)
    return {"text": translate(str(error), request.path), "hint": hint, "back": back, "back_label": back_label}


STATUSES: tuple[tuple[type[RetrySafeError], int], ...] = (
    (Forbidden, 403),
    (NotFound, 404),
    (OutOfReach, 503),
    (StoreError, 503),
    (NotUncertain, 409),
    (UsageError, 400),
)


def find_status(error: RetrySafeError) -> int:
    """The status of an error. What the state does not allow, or what changed underneath, is a conflict."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 409)


__all__ = ["Console", "Operator"]
