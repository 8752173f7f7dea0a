"""The ASGI middleware: Starlette, FastAPI, Litestar, Quart, Django ASGI, or a bare application.

    app = IdempotencyMiddleware(app, safe=safe, scope=lambda request: request.raw["user"].account_id)

With `scope` the claim is made here, before the application: authentication must be a layer further out. Without it the
middleware only captures, and the route claims when it knows who asks: `await scope["retrysafe.exchange"].claim(who)`.

Granted work runs in a task of its own. A client that leaves does not stop it, and a server that shuts down waits
for it a while (`grace`) before it is cancelled and written down as stopped half way.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Unpack

from retrysafe.core.deprecation import renamed_names
from retrysafe.engine.heartbeat import adopt_lease
from retrysafe.engine.safe import RetrySafe
from retrysafe.web import problems, status
from retrysafe.web.asgi_answer import AnswerSender, Message, Send
from retrysafe.web.endpoint_entry import EntryProbe
from retrysafe.web.exchange import DRAIN_LIMIT_BYTES, EXCHANGE, BodyRefused, scope_from_principal
from retrysafe.web.exchange_context import reset_current_exchange, set_current_exchange
from retrysafe.web.response_ready import ResponseReady, is_response_ready
from retrysafe.web.routes import Route
from retrysafe.web.settings import Options, Scope, Settings
from retrysafe.web.sync_async import AsyncExchange
from retrysafe.web.timeouts import wait_until
from retrysafe.web.view import RequestView, view_from_scope

ASGIScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
ASGIApp = Callable[[ASGIScope, Receive, Send], Awaitable[None]]

UNCAPTURED_EXTENSIONS = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})
"""Server extensions by which an answer would go past us."""

CANCEL_TIMEOUT_SECONDS = 5.0
"""How long cancelled work may take to notice it."""

MAX_CANCELS = 8
"""More of them than a server has reason to send, and fewer than a cancel scope sends in a millisecond."""


class IdempotencyMiddleware:
    """See the module; the options are in retrysafe.web.settings.Options."""

    state_keys_to_drop: Sequence[str] = ()
    """What of `scope["state"]` a second run must not find: a framework's own notes about the first one."""

    def __init__(
        self, app: ASGIApp, *, safe: RetrySafe, scope: Scope | None = None, **options: Unpack[Options]
    ) -> None:
        self.app = app
        self.settings = Settings(safe, scope, options)
        self._methods = self.settings.methods
        self._header = self.settings.header_bytes
        self._detached: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        # Upper case only to decide: the application gets it as it came, and some dispatch `patch` as PATCH.
        method = scope["method"].upper()
        if method not in self._methods:
            if self.settings.serves_status and method == "GET":
                token = self._status_token(scope)
                if token is not None:
                    return await self._respond_status(view_from_scope(scope), token, send)
            return await self.app(scope, receive, send)
        route = self.settings.routes.find(method, local_path(scope))
        if route is None:
            return await self.app(scope, receive, send)
        lines = [value for name, value in scope["headers"] if name == self._header]
        if not lines and route.policy.mode == "optional":
            return await self._run_without_key(scope, receive, send, route)
        exchange = AsyncExchange(
            self.settings, view_from_scope(scope), route, [line.decode("latin-1") for line in lines]
        )
        exchange.body = body = AsgiBody(exchange, receive)
        if self.settings.scope is not None and not await self._claim_at_edge(body, send):
            return None
        work = asyncio.create_task(self._run_with_reruns(scope, body, send))
        return await self._await_work(work, body)

    async def _claim_at_edge(self, body: AsgiBody, send: Send) -> bool:
        """Claim at the edge. False: it is answered already. Still in the server's own task: until the claim is granted
        there is nothing to protect, and a replay needs no task."""
        assert self.settings.scope is not None
        exchange, admitted = body.exchange, False
        try:
            await exchange.claim_without_adopting(await _read_principal(self.settings.scope, exchange.view))
            admitted = True
        except ResponseReady:
            await AnswerSender(exchange, send, body.finished).end()
        finally:
            if not admitted:
                del exchange.body
        return admitted

    async def _run_without_key(self, scope: ASGIScope, receive: Receive, send: Send, route: Route) -> None:
        """No key, and none is needed: the application gets its own `receive` and `send`."""
        if self.settings.scope is not None:
            self.settings.census.count(route.target, "", "missing")
            return await self.app(scope, receive, send)
        exchange = AsyncExchange(self.settings, view_from_scope(scope), route, ())
        exchange.untouched = True
        token = set_current_exchange(exchange)
        try:
            return await self.app({**scope, EXCHANGE: exchange}, receive, send)
        finally:
            reset_current_exchange(token)

    async def _run_with_reruns(self, scope: ASGIScope, body: AsgiBody, send: Send) -> None:
        """All in one task: run it, and again where the database undid it because of others (joining.py says when)."""
        pristine = ScopeSnapshot(scope)
        try:
            await self._run_once(scope, body, AnswerSender(body.exchange, send, body.finished))
            while body.exchange.rolled_back:
                pristine.restore(scope, self.state_keys_to_drop)
                body.rewind()
                await self._run_once(scope, body, AnswerSender(body.exchange, send, body.finished))
        finally:
            body.finished.set()
            exchange = body.exchange
            if exchange.observed is not None:
                await exchange.end_observation()
            del exchange.body  # the two hold each other: with this the request's body is freed now and not some day

    async def _run_once(self, scope: ASGIScope, body: AsgiBody, sender: AnswerSender) -> None:
        """Run, settle, answer."""
        exchange = body.exchange
        set_current_exchange(exchange)
        try:
            if exchange.grant is not None:
                adopt_lease(exchange.grant.lease)
            inner = _build_inner_scope(scope, exchange)
            exchange.entry_probe = self.make_entry_probe(inner)
            await self.app(inner, body.receive, sender.send)
        except Exception as error:
            if is_response_ready(error) and exchange.response is not None:
                return await sender.end()
            await sender.settle_failed(error)
            if not exchange.rolled_back:
                raise
        except BaseException as error:
            await sender.settle_stopped(error)
            raise
        else:
            await sender.end()
        finally:
            exchange.entry_probe = None

    def make_entry_probe(self, scope: ASGIScope) -> EntryProbe | None:
        """Who can tell whether an endpoint was entered by the time the answer is there. An adapter's to say."""
        return None

    async def _await_work(self, work: asyncio.Task[None], body: AsgiBody) -> None:
        # Not the task itself is awaited: who is cancelled cancels what it awaits.
        over = asyncio.get_running_loop().create_future()
        work.add_done_callback(lambda _: None if over.done() else over.set_result(None))
        try:
            await over
        except asyncio.CancelledError:
            await self._wind_down(work, body)
            raise
        work.result()

    async def _wind_down(self, work: asyncio.Task[None], body: AsgiBody) -> None:
        """The server wants to stop: claimed work may finish for a while, then it is cancelled and says so."""
        waited = True
        if body.exchange.claimed:
            waited = await _wait_through_cancels(work, self.settings.grace)
        if not work.done() and waited:
            work.cancel()
            waited = await _wait_through_cancels(work, CANCEL_TIMEOUT_SECONDS)
        if not work.done():
            self._detach(work, 0 if waited else self.settings.grace)
        elif not work.cancelled():
            work.exception()  # it was written down; the cancellation is what the server hears

    def _detach(self, work: asyncio.Task[None], seconds: float) -> None:
        """Whoever cancels does not let us wait (anyio does so at each turn of the loop): the work ends by itself."""
        self._detached.add(work)  # a task nobody holds may vanish
        timer = asyncio.get_running_loop().call_later(seconds, work.cancel)

        def ended(done: asyncio.Task[None]) -> None:
            timer.cancel()
            self._detached.discard(done)
            if not done.cancelled():
                done.exception()

        work.add_done_callback(ended)

    def _status_token(self, scope: ASGIScope) -> str | None:
        prefix, path = self.settings.status_path + "/", local_path(scope)
        return path[len(prefix) :] if path.startswith(prefix) else None

    async def _respond_status(self, view: RequestView, token: str, send: Send) -> None:
        settings = self.settings
        assert settings.status_scope is not None, "checked when the middleware was made"
        principal = scope_from_principal(await _read_principal(settings.status_scope, view))
        flow = status.status_flow(settings, view.raw.get("root_path", ""), token, principal)
        response = await settings.safe.arun(flow)
        await AnswerSender.transmit(send, response)


class AsgiBody:
    """The request body on its way to the application, remembered for the fingerprint as it passes."""

    def __init__(self, exchange: AsyncExchange, receive: Receive) -> None:
        self.exchange = exchange
        self.finished = asyncio.Event()
        """Set when the request is answered."""
        self._receive = receive
        self._chunks: list[bytes] = []
        self._size = 0
        self._complete = self._too_large = False
        self._waiting: deque[Message] = deque()
        self._limit = max(exchange.settings.max_body, exchange.policy.max_body)

    async def receive(self) -> Message:
        """The application's `receive`."""
        if self._waiting:
            return self._waiting.popleft()
        if not self._complete:
            return self._note_message(await self._receive())
        return await self._receive_after_body()

    async def read_all(self, limit: int, seconds: float, *, keep: bool = False) -> list[bytes]:
        """The whole body, read to its end; the application will get it again, and with `keep` once more after each
        `rewind`."""
        limit = min(limit, self._limit)  # of more than that we have not remembered everything
        headers = self.exchange.view.headers
        declared = headers.get("content-length", "0")
        if self._size > limit or (declared.isdecimal() and int(declared) > limit):
            self._too_large = "expect" not in headers  # who asked before sending has not sent
            raise BodyRefused(problems.TOO_LARGE)
        deadline = asyncio.get_running_loop().time() + seconds
        while not self._complete:
            try:
                message = self._note_message(await wait_until(deadline, self._receive()))
            except TimeoutError:
                raise BodyRefused(problems.TOO_SLOW) from None
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
        """From the beginning again, for the run that takes the place of one that was undone."""
        exchange = self.exchange.for_retry()
        del self.exchange.body
        self.exchange, exchange.body = exchange, self
        last = len(self._chunks) - 1
        self._waiting = deque(
            {"type": "http.request", "body": chunk, "more_body": at < last}
            for at, chunk in enumerate(self._chunks or [b""])
        )

    async def drain_refused(self, seconds: float) -> None:
        """Read on for a while what was refused as too large."""
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
            self._chunks.clear()  # too large to be claimed; no reason to hold it
        self._complete = not message.get("more_body", False)
        return message

    async def _receive_after_body(self) -> Message:
        """After the body there is only the disconnect. While the work of a key runs, it is not the application's
        business: half done is worse than done for nobody. Never invented, and never early."""
        message: Message | None = None
        if not self.exchange.claimed and not self.finished.is_set():
            message = await self._receive()
        if self.exchange.claimed:
            await self.finished.wait()
        return message if message is not None else await self._receive()


class ScopeSnapshot:
    """What applications change of a scope they were given, as it was before. The scope itself is copied for each run
    (`_build_inner_scope`); these are what the copies share."""

    def __init__(self, scope: ASGIScope) -> None:
        self._headers = list(scope["headers"])
        self._state = dict(scope.get("state") or {})

    def restore(self, scope: ASGIScope, state_keys_to_drop: Sequence[str]) -> None:
        """In place: whoever stands around us sees the state of the run that counts."""
        scope["headers"] = list(self._headers)
        if scope.get("state") is not None:
            scope["state"].clear()
            scope["state"].update(
                (name, value) for name, value in self._state.items() if name not in state_keys_to_drop
            )


async def _read_principal(scope: Scope, view: RequestView) -> Any:
    found = scope(view)
    return found if isinstance(found, str) or not inspect.isawaitable(found) else await found


async def _wait_through_cancels(work: asyncio.Task[None], limit: float) -> bool:
    """Wait, although somebody cancels. False: somebody cancels all the time, and waiting would only burn the loop."""
    loop = asyncio.get_running_loop()
    deadline, cancels = loop.time() + limit, 0
    while not work.done() and loop.time() < deadline:
        try:
            await asyncio.wait({work}, timeout=deadline - loop.time())
        except asyncio.CancelledError:
            cancels += 1
            if cancels > MAX_CANCELS:
                return False
    return True


def _build_inner_scope(scope: ASGIScope, exchange: AsyncExchange) -> ASGIScope:
    inner = {**scope, EXCHANGE: exchange}
    extensions = scope.get("extensions")
    if extensions:
        inner["extensions"] = {name: value for name, value in extensions.items() if name not in UNCAPTURED_EXTENSIONS}
    return inner


def local_path(scope: ASGIScope) -> str:
    """The path below where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root + "/") else path


__all__ = ["IdempotencyMiddleware", "ResponseReady"]

__getattr__ = renamed_names("retrysafe.web.asgi", {"Shortcut": "ResponseReady"})
