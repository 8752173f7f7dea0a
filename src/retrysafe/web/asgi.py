"""The ASGI middleware: Starlette, FastAPI, Litestar, Quart, Django ASGI, or a bare application.

    app = IdempotencyMiddleware(app, safe=safe, scope=lambda request: request.raw["user"].account_id)

With `scope` the middleware makes the claim, before the application: an outer middleware must authenticate the request.
Without `scope` the middleware only captures the answer. The route makes the claim when it knows the principal:
`await scope["retrysafe.exchange"].claim(principal)`.

Granted work runs in a task of its own. A client that disconnects does not stop it. A server that shuts down waits for
the work for up to `grace` seconds; then the work is cancelled, and its record says that it was stopped half way.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Unpack

from retrysafe.core.deprecation import renamed_names
from retrysafe.engine.cancellation import finish_despite_cancellation
from retrysafe.engine.heartbeat import adopt_lease
from retrysafe.engine.safe import RetrySafe
from retrysafe.web import problems, status
from retrysafe.web.accepted_routes import warn_without_status
from retrysafe.web.applications import list_applications, warn_unseen_refusals
from retrysafe.web.asgi_answer import AnswerSender, Message, Send
from retrysafe.web.endpoint_entry import EntryProbe
from retrysafe.web.exchange import DRAIN_LIMIT_BYTES, EXCHANGE, BodyRefused, scope_from_principal
from retrysafe.web.exchange_context import (
    ResponseReady,
    is_response_ready,
    reset_current_exchange,
    set_current_exchange,
)
from retrysafe.web.key_usage import KeyUsageStats
from retrysafe.web.keyless import KeylessExchange
from retrysafe.web.routes import Route
from retrysafe.web.settings import Options, Scope, Settings
from retrysafe.web.sync_async import AsyncExchange
from retrysafe.web.timeouts import finish_until
from retrysafe.web.view import RequestView, view_from_scope

ASGIScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
ASGIApp = Callable[[ASGIScope, Receive, Send], Awaitable[None]]

UNCAPTURED_EXTENSIONS = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})
"""Server extensions that would send an answer without passing this middleware."""

CANCEL_TIMEOUT_SECONDS = 5.0
"""How long the middleware waits for work that it has cancelled."""

WORK_NAME = "retrysafe work"
"""The name of the tasks that run applications."""

MAX_CANCELS = 8
"""After this many cancellations the middleware stops waiting. No server sends as many; an anyio cancel scope sends more
within a millisecond."""


class IdempotencyMiddleware:
    """See the module; the options are in retrysafe.web.settings.Options."""

    state_keys_to_drop: Sequence[str] = ()
    """Keys of `scope["state"]` that a rerun must not see, because the framework keeps data of the first run there."""

    keyless_modes: frozenset[str] = frozenset({"optional"})
    """The modes in which a request without a key is not captured."""

    def __init__(
        self, app: ASGIApp, *, safe: RetrySafe, scope: Scope | None = None, **options: Unpack[Options]
    ) -> None:
        self.app = app
        self.settings = Settings(safe, scope, options)
        self._methods = self.settings.methods
        self._header = self.settings.header_bytes
        self._detached: set[asyncio.Task[None]] = set()
        self._looked = False

    @property
    def census(self) -> KeyUsageStats:
        """Who sends keys, per route and client (docs/howto/rollout.md)."""
        return self.settings.census

    def list_accepting(self, scope: ASGIScope) -> Iterable[str]:
        """The routes whose own policy answers 202, where the framework's application is known (accepted_routes.py).
        Asked when the server starts the application."""
        return ()

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                warn_without_status(self.settings, self.list_accepting(scope))
                self.make_entry_probe(scope)
            return await self.app(scope, receive, send)
        # Upper case for our decision only. The application gets the method as sent; some dispatch `patch` as PATCH.
        method = scope["method"].upper()
        if method not in self._methods:
            if self.settings.serves_status and method == "GET":
                token = self._status_token(scope)
                if token is not None:
                    return await self._respond_status(view_from_scope(scope), token, send)
            return await self.app(scope, receive, send)
        path = strip_mount_path(scope) if scope.get("root_path") else scope["path"]
        route = self.settings.routes.find(method, path)
        if route is None:
            return await self.app(scope, receive, send)
        lines = [value.decode("latin-1") for name, value in scope["headers"] if name == self._header]
        if not lines and route.policy.mode in self.keyless_modes:
            return await self._run_without_key(scope, receive, send, route)
        exchange = AsyncExchange(self.settings, view_from_scope(scope), route, lines)
        exchange.body = body = AsgiBody(exchange, receive)
        if self.settings.scope is not None and not await self._claim_at_edge(body, send):
            return None
        # With a name: a default name would be formatted for each request.
        loop = asyncio.get_running_loop()
        work = loop.create_task(self._run_with_reruns(scope, body, send), name=WORK_NAME)
        # Wait on a future, not on the task: cancelling a coroutine also cancels the task it awaits.
        done: asyncio.Future[None] = loop.create_future()
        work.add_done_callback(lambda _: None if done.done() else done.set_result(None))
        try:
            await done
        except asyncio.CancelledError:
            await self._wind_down(work, body)
            raise
        work.result()
        return None

    async def _claim_at_edge(self, body: AsgiBody, send: Send) -> bool:
        """Claim before the application runs. False: the request is answered. This runs in the server's own task: before
        the claim is granted there is no work to protect, and a replay needs no task."""
        assert self.settings.scope is not None
        exchange, admitted = body.exchange, False
        try:
            principal = self.settings.scope(exchange.view)
            if not isinstance(principal, str) and inspect.isawaitable(principal):
                principal = await principal
            await exchange.claim_without_adopting(principal)
        except ResponseReady:
            pass
        else:
            admitted = exchange.response is None
        finally:
            if not admitted:
                del exchange.body
        response = exchange.response
        if response is not None:
            extra = exchange.extra_headers()
            await AnswerSender.transmit(send, response.with_headers(*extra) if extra else response)
        return admitted

    async def _run_without_key(self, scope: ASGIScope, receive: Receive, send: Send, route: Route) -> None:
        """No key was sent and none is needed: the application gets the server's `receive` and `send`."""
        if self.settings.scope is not None:
            self.settings.census.count(route.target, "", "missing", route.series[1])
            return await self.app(scope, receive, send)
        exchange = KeylessExchange(self.settings, scope, route)
        exchange.uncaptured = True
        token = set_current_exchange(exchange)
        try:
            return await self.app({**scope, EXCHANGE: exchange}, receive, send)
        finally:
            reset_current_exchange(token)

    async def _run_with_reruns(self, scope: ASGIScope, body: AsgiBody, send: Send) -> None:
        """Run the application, settle the claim, send the answer; and again each time the database rolled the work back
        because of other transactions (transaction_flow.py). All runs share one task."""
        # Work that was claimed here cannot be rolled back: only a transaction of the user's can (transaction_flow.py).
        snapshot = None if body.exchange.claimed else ScopeSnapshot(scope)
        try:
            while True:
                exchange, sender = body.exchange, AnswerSender(body.exchange, send, body)
                set_current_exchange(exchange)
                try:
                    grant = exchange.grant
                    if grant is not None:
                        # Here, and not where it was claimed: this task may have begun long after that.
                        if not grant.lease.fits(0.0):
                            await exchange.check_late_start(grant)
                        adopt_lease(grant.lease)
                    inner = _build_inner_scope(scope, exchange)
                    exchange.entry_probe = self.make_entry_probe(inner)
                    await self.app(inner, body.receive, sender.send)
                except BaseException as error:
                    if not await self._settle_error(error, exchange, sender):
                        raise
                else:
                    if not sender.complete:
                        await sender.end()
                finally:
                    exchange.entry_probe = None
                if not exchange.rolled_back or snapshot is None:
                    return
                snapshot.restore(scope, self.state_keys_to_drop)
                body.rewind()
        finally:
            body.note_answered()
            exchange = body.exchange
            if exchange.observation_lease is not None:
                await exchange.end_observation()
            del exchange.body  # breaks the reference cycle, so that the request's body is freed at once

    @staticmethod
    async def _settle_error(error: BaseException, exchange: AsyncExchange, sender: AnswerSender) -> bool:
        """Settle a run that ended with an exception. False: the exception is raised again."""
        if not isinstance(error, Exception):
            await sender.settle_stopped(error)
            return False
        if is_response_ready(error) and exchange.response is not None:
            await sender.end()
            return True
        await sender.settle_failed(error)
        return exchange.rolled_back

    def make_entry_probe(self, scope: ASGIScope) -> EntryProbe | None:
        """A function that says, when the answer is there, whether an endpoint was entered. Adapters override it. It is
        also asked for when the server starts the application, so that the application is looked through by then."""
        if not self._looked:
            self._looked = True
            warn_unseen_refusals(self.settings, list_applications(scope, self.app))
        return None

    async def _wind_down(self, work: asyncio.Task[None], body: AsgiBody) -> None:
        """The server cancelled the request: claimed work may go on for `grace` seconds, then it is cancelled, too."""
        waited = True
        if body.exchange.claimed:
            held = await finish_despite_cancellation(work, seconds=self.settings.grace, max_cancels=MAX_CANCELS)
            waited = held.number <= MAX_CANCELS
        if not work.done() and waited:
            work.cancel()
            held = await finish_despite_cancellation(work, seconds=CANCEL_TIMEOUT_SECONDS, max_cancels=MAX_CANCELS)
            waited = held.number <= MAX_CANCELS
        if not work.done():
            self._detach(work, 0 if waited else self.settings.grace)
        elif not work.cancelled():
            work.exception()  # marks it as retrieved: it is recorded, and the server gets the cancellation

    def _detach(self, work: asyncio.Task[None], seconds: float) -> None:
        """Let the work end by itself. Used when waiting is impossible: anyio cancels again at each turn of the loop."""
        self._detached.add(work)  # the loop holds tasks only weakly
        timer = asyncio.get_running_loop().call_later(seconds, work.cancel)

        def forget_work(done: asyncio.Task[None]) -> None:
            timer.cancel()
            self._detached.discard(done)
            if not done.cancelled():
                done.exception()

        work.add_done_callback(forget_work)

    def _status_token(self, scope: ASGIScope) -> str | None:
        prefix, path = self.settings.status_path + "/", strip_mount_path(scope)
        return path[len(prefix) :] if path.startswith(prefix) else None

    async def _respond_status(self, view: RequestView, token: str, send: Send) -> None:
        settings = self.settings
        assert settings.status_scope is not None, "checked when the middleware was made"
        principal = scope_from_principal(await _read_principal(settings.status_scope, view))
        flow = status.status_flow(settings, view.raw.get("root_path", ""), token, principal)
        response = await settings.safe.arun(flow)
        await AnswerSender.transmit(send, response)


class AsgiBody:
    """The request body on its way to the application. It is remembered for the fingerprint."""

    def __init__(self, exchange: AsyncExchange, receive: Receive) -> None:
        self.exchange = exchange
        self._answered = False
        self._on_answered: asyncio.Event | None = None
        """Made when somebody waits for it: nearly no application does."""
        self._receive = receive
        self._chunks: list[bytes] = []
        self._size = 0
        self._complete = self._too_large = False
        self._waiting: list[Message] = []
        most, own = exchange.settings.max_body, exchange.policy.max_body
        self._limit = own if own > most else most

    async def receive(self) -> Message:
        """The application's `receive`."""
        if self._waiting:
            return self._waiting.pop(0)
        if not self._complete:
            return self._note_message(await self._receive())
        return await self._receive_after_body()

    async def read_all(self, limit: int, seconds: float, *, keep: bool = False) -> list[bytes]:
        """Read the whole body. The application still gets it from `receive`; with `keep` again after a `rewind`."""
        limit = min(limit, self._limit)  # a larger body is not remembered whole
        headers = self.exchange.view.headers
        declared = headers.get_raw(b"content-length")
        if self._size > limit or (declared is not None and declared.isdigit() and int(declared) > limit):
            self._too_large = "expect" not in headers  # with `Expect: 100-continue` nothing was sent yet
            raise BodyRefused(problems.TOO_LARGE)
        deadline = 0.0
        while not self._complete:
            # By hand, because the body has nearly always come together with the headers: nothing waits, and a timeout
            # around it would cost more than reading the body.
            steps = self._receive().__await__()
            try:
                waits_for = steps.send(None)
            except StopIteration as received:
                message: Message = received.value
            else:
                deadline = deadline or asyncio.get_running_loop().time() + seconds
                try:
                    message = await finish_until(deadline, steps, waits_for)
                except TimeoutError:
                    raise BodyRefused(problems.TOO_SLOW) from None
            self._note_message(message)
            self._waiting.append(message)
            if self._size > limit:
                self._too_large = True
                raise BodyRefused(problems.TOO_LARGE)
            if message["type"] == "http.disconnect":
                raise BodyRefused(problems.UNREADABLE)
        chunks = self._chunks
        if not keep:
            self._chunks = []
        return chunks

    def rewind(self) -> None:
        """Start again from the first byte, with a new exchange, for the next run after a rollback."""
        exchange = self.exchange.copy_for_rerun()
        del self.exchange.body
        self.exchange, exchange.body = exchange, self
        last = len(self._chunks) - 1
        self._waiting = [
            {"type": "http.request", "body": chunk, "more_body": at < last}
            for at, chunk in enumerate(self._chunks or [b""])
        ]

    async def drain_refused(self, seconds: float) -> None:
        """Read some more of a body that was refused as too large (DRAIN_LIMIT_BYTES says why)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._too_large and not self._complete and self._size < DRAIN_LIMIT_BYTES:
                    self._note_message(await self._receive())

    def _note_message(self, message: Message) -> Message:
        if message["type"] != "http.request":
            self._complete = True
            return message
        chunk = message.get("body", b"")
        self._size += len(chunk)
        if chunk:
            self._chunks.append(chunk)
        if self._size > self._limit:
            self._chunks.clear()  # too large for a claim, so it is not needed
        self._complete = not message.get("more_body", False)
        return message

    def note_answered(self) -> None:
        """The answer was sent, or nothing will be."""
        self._answered = True
        if self._on_answered is not None:
            self._on_answered.set()

    async def _receive_after_body(self) -> Message:
        """After the body only `http.disconnect` can come. While claimed work runs, the application does not get it:
        work stopped half way is worse than an answer that nobody reads. The message always comes from the server."""
        message: Message | None = None
        if not self.exchange.claimed and not self._answered:
            message = await self._receive()
        if self.exchange.claimed and not self._answered:
            self._on_answered = self._on_answered or asyncio.Event()
            await self._on_answered.wait()
        return message if message is not None else await self._receive()


class ScopeSnapshot:
    """A copy of those parts of a scope that applications change. Each run gets a copy of the scope itself
    (`_build_inner_scope`), but all copies share these parts."""

    def __init__(self, scope: ASGIScope) -> None:
        self._headers = list(scope["headers"])
        self._state = dict(scope.get("state") or {})

    def restore(self, scope: ASGIScope, state_keys_to_drop: Sequence[str]) -> None:
        """Undo the changes in place: outer middleware hold the same dict and must see the last run's state."""
        scope["headers"] = list(self._headers)
        if scope.get("state") is not None:
            scope["state"].clear()
            scope["state"].update(
                (name, value) for name, value in self._state.items() if name not in state_keys_to_drop
            )


async def _read_principal(scope: Scope, view: RequestView) -> Any:
    found = scope(view)
    return found if isinstance(found, str) or not inspect.isawaitable(found) else await found


def _build_inner_scope(scope: ASGIScope, exchange: AsyncExchange) -> ASGIScope:
    inner = {**scope, EXCHANGE: exchange}
    extensions = scope.get("extensions")
    if extensions:
        inner["extensions"] = {name: value for name, value in extensions.items() if name not in UNCAPTURED_EXTENSIONS}
    return inner


def strip_mount_path(scope: ASGIScope) -> str:
    """The path below the application's mount point."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root + "/") else path


__all__ = ["IdempotencyMiddleware", "ResponseReady"]

__getattr__ = renamed_names("retrysafe.web.asgi", {"Shortcut": "ResponseReady"})
