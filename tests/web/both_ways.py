"""Plays random traffic by the straight way (web/sync_async.py) and by flows only, on any store, and compares what each
tells and leaves: answers, records, events, log lines, calls of the store.

Every difference between the two is a defect. Faults meet any call of the store. A request is cancelled at a call of
the store (just before it is carried out, or when its reply is on its way), inside the application, or while its answer
is sent: points that both ways pass. What depends on the clock, and the ids of records (each play has a namespace of its
own), are left out of the comparison.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple, TypeVar
from unittest import mock

from retrysafe import KeyRing, Policy, RetrySafe
from retrysafe.core.keys import Key
from retrysafe.core.ops import Lookup, Op, Suspect
from retrysafe.engine.orphaned_claims import OrphanedClaims, run_to_pause
from retrysafe.engine.probe import Probe
from retrysafe.stores.wrappers import AsyncStoreWrapper
from retrysafe.testing.faults import AsyncFaultStore, Fault, FaultStore, Script
from retrysafe.web.asgi import WORK_NAME, IdempotencyMiddleware
from retrysafe.web.sync_async import AsyncExchange, SyncExchange
from retrysafe.web.traffic import Quota
from retrysafe.web.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.web.unit.harness import Caller, WsgiCall, answer, scope_of, who

R = TypeVar("R")

POLICIES = (
    Policy(max_answer=40),
    Policy(max_answer=40, failures="release", abandoned="rerun"),
    Policy(max_answer=40, failures="success_only", busy="accepted"),
    Policy(max_answer=40, busy="wait", wait=0.0),
    Policy(max_answer=40, mode="observe"),
)
STATUSES = (200, 201, 201, 204, 302, 404, 429, 500)
KEYS = tuple(f"key-{number}" for number in range(1, 5))
REQUESTS = 12
HEX = re.compile(r"[0-9a-f]{32,}")
STATUS_ID = re.compile(r"status/[\w-]{43}")
"""The part of a status address that says the record's id. What follows says its run."""
POINTS = ("before", "after", "app", "send")


class Boom(Exception):
    """The handler's own failure."""


class Request(NamedTuple):
    """One request of a history, and what its handler does."""

    key: str
    body: bytes
    status: int | None
    """None: the handler raises."""
    size: int
    cancelled_at: str
    """One of POINTS; empty: it is not cancelled."""
    at_call: int
    """Which call of the store within this request, from 1: for the points `before` and `after`."""
    cancels_work: bool
    """Whether the work's own task is cancelled, if there is one, and not the server's."""
    meanwhile: str
    """What another process does to the record before: nothing, claim it, or mark its outcome as unknown."""


class History(NamedTuple):
    policy: Policy
    faults: tuple[Fault, ...]
    requests: tuple[Request, ...]
    has_ring: bool
    quota: Quota | None


class Told(NamedTuple):
    """What a history came to."""

    answers: list[Any]
    events: list[Any]
    records: list[Any]
    calls: list[str]
    logs: list[str]


def draw_history(seed: int, *, cancels: bool = False) -> History:
    draw = random.Random(seed)
    points: Any = ("before", "applied", "delayed")
    faults = tuple(Fault(draw.randint(1, 25), draw.choice(points)) for _ in range(draw.choice((0, 1, 2))))
    requests = tuple(
        Request(
            key=draw.choice(KEYS),
            body=draw.choice((b'{"a":1}', b'{ "a": 1 }', b'{"a":2}')),
            status=draw.choice((*STATUSES, None)),
            size=draw.choice((0, 10, 60)),
            cancelled_at=draw.choice(POINTS) if cancels and draw.random() < 0.3 else "",
            at_call=draw.choice((1, 1, 2, 2, 3)),
            cancels_work=draw.random() < 0.5,
            meanwhile=draw.choice(("", "", "", "claimed", "suspected")),
        )
        for _ in range(REQUESTS)
    )
    quota = Quota(live=3) if draw.random() < 0.15 else None
    return History(draw.choice(POLICIES), faults, requests, draw.random() < 0.2, quota)


# The two ways -------------------------------------------------------------------------------------


@contextmanager
def by_flows_only() -> Iterator[None]:
    async def asend(self: Any, task: Any) -> Any:
        return await self.settings.safe.arun(self.claim_flow(task, task.build_claim()))

    async def asettle(self: Any, code: int, headers: Any, body: bytes) -> Any:
        return await self.settle(self.settle_answered(code, headers, body))

    def send(self: Any, task: Any) -> Any:
        return self.settings.safe.run(self.claim_flow(task, task.build_claim()))

    def settle(self: Any, code: int, headers: Any, body: bytes) -> Any:
        return self.settle(self.settle_answered(code, headers, body))

    with ExitStack() as stack:
        for owner, name, instead in (
            (AsyncExchange, "_send_claim", asend),
            (AsyncExchange, "settle_answer", asettle),
            (SyncExchange, "_send_claim", send),
            (SyncExchange, "settle_answer", settle),
        ):
            stack.enter_context(mock.patch.object(owner, name, instead))
        yield


@contextmanager
def made_certain(seed: int) -> Iterator[None]:
    """Tokens and nonces come from the seed, pauses take no time. A claim that is given up is followed up at once
    instead of in a thread, and a store that is away is asked at once."""
    draw, sleep = random.Random(seed), asyncio.sleep

    async def no_sleep(seconds: float, result: Any = None) -> Any:
        await sleep(0)
        return result

    def follow_up_now(self: OrphanedClaims, flow: Any) -> None:
        while run_to_pause(flow, self._execute) is not None:
            continue

    def probe_now(self: Probe) -> None:
        self._probe_until_back(mock.Mock(wait=lambda seconds: False, is_set=lambda: False))

    with (
        mock.patch("os.urandom", draw.randbytes),
        mock.patch("asyncio.sleep", no_sleep),
        mock.patch("time.sleep", return_value=None),
        mock.patch.object(OrphanedClaims, "_start", follow_up_now),
        mock.patch.object(Probe, "start", probe_now),
    ):
        yield


class Cancelling(AsyncStoreWrapper):
    """Cancels a request at one of its calls of the store."""

    in_order = False

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.inner = store
        self.work: asyncio.Future[Any] | None = None
        self.request: Request | None = None
        self.calls = 0

    def begin(self, request: Request, work: asyncio.Future[Any]) -> None:
        self.request, self.work, self.calls = request, work, 0

    async def execute(self, op: Op[R]) -> R:
        self.calls += 1
        number = self.calls
        await self._cancel_at("before", number)
        reply: R = await self.inner.execute(op)
        await self._cancel_at("after", number)
        return reply

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        replies: list[Any] = await self.inner.execute_many(ops)
        return replies

    async def _cancel_at(self, point: str, number: int) -> None:
        if self.request is not None and (self.request.cancelled_at, self.request.at_call) == (point, number):
            self.cancel()
            await asyncio.sleep(0)  # where the cancellation arrives, if this is the request's own task

    def cancel(self) -> None:
        """Cancel the server's task, which lets the work go on for a while; or the work itself, as after that while."""
        assert self.request is not None
        work = [task for task in asyncio.all_tasks() if task.get_name() == WORK_NAME and not task.done()]
        for task in work if work and self.request.cancels_work else [self.work]:
            if task is not None:
                task.cancel()


class Lines(logging.Handler):
    """Collects what is logged, without what differs from play to play."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name} {record.levelname} {HEX.sub('ID', record.getMessage())}")


@contextmanager
def logged() -> Iterator[list[str]]:
    lines, logger = Lines(), logging.getLogger("retrysafe")
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        yield lines.lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)


class Stage:
    """A RetrySafe of one play, on a store that fails as scripted, in a namespace of its own."""

    def __init__(self, history: History, namespace: str, store: Any, async_store: Any = None) -> None:
        self.events: list[Any] = []
        self.script = Script(history.faults)
        self.store = store
        self.sealed = history.has_ring
        faulty = None if async_store is None else AsyncFaultStore(async_store, self.script)
        self.cancelling = None if faulty is None else Cancelling(faulty)
        self.safe = RetrySafe(
            FaultStore(store, self.script),
            async_store=self.cancelling,
            namespace=namespace,
            keyring=KeyRing({"a": bytes(range(32))}) if history.has_ring else None,
            on_event=self.events.append,
        )

    def find_record(self, key: str) -> Any:
        return self.store.execute(Lookup(Key(key, "alice").id(self.safe.namespace))).record

    def disturb(self, request: Request) -> None:
        """The sweeper of another process has marked the record."""
        record = self.find_record(request.key) if request.meanwhile == "suspected" else None
        if record is not None and record.completed == 0:
            self.store.execute(Suspect(record.id, record.fence, "marked meanwhile"))

    def sum_up(self, answers: list[Any], logs: list[str]) -> Told:
        records = [
            keep_what_is_certain(record, self.sealed) for record in map(self.find_record, KEYS) if record is not None
        ]
        events = [
            HEX.sub("ID", repr(event).replace(self.safe.namespace, "NS")) for event in map(plain_event, self.events)
        ]
        return Told(answers, events, records, [kind.__name__ for kind in self.script.seen], list(logs))

    def end(self) -> None:
        """End the threads of this play. Its stores are the caller's."""
        self.safe.performer().close()
        self.safe._heartbeat.stop()


def plain_event(event: Any) -> Any:
    return {name: value for name, value in vars_of(event).items() if name not in ("id", "at", "seconds")}


def vars_of(event: Any) -> dict[str, Any]:
    fields = getattr(event, "__dataclass_fields__", None) or getattr(event, "_fields", None) or ()
    return {name: getattr(event, name) for name in fields} or {"event": repr(event)}


def keep_what_is_certain(record: Any, sealed: bool) -> Any:
    """A record without its times, its id and its namespace. What is sealed is bound to the id, so the ciphertexts of
    two plays differ; its replays are compared."""
    answer = record.answer
    if sealed and answer is not None:
        answer = (answer.status, answer.gone)
    return (
        record.key, record.scope, record.state, record.attempt, record.token, record.run, record.ended, record.advances,
        record.point, record.progress, record.input, record.note, record.target, record.on_lapse, answer,
        record.fingerprint,
    )  # fmt: skip


def keep_body(body: bytes) -> bytes:
    return STATUS_ID.sub("status/ID", body.decode("latin-1")).encode("latin-1")


def keep_headers(headers: Any) -> Any:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [
        (name, STATUS_ID.sub("status/ID", str(value)))
        for name, value in pairs
        if str(name).lower() not in ("retry-after", "b'retry-after'")
    ]


# The plays ----------------------------------------------------------------------------------------


async def play(history: History, seed: int, namespace: str, store: Any, async_store: Any) -> Told:
    told: list[Any] = []
    with made_certain(seed), logged() as logs:
        stage = Stage(history, namespace, store, async_store)
        cancelling = stage.cancelling
        assert cancelling is not None
        current: list[Request] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            request = current[-1]
            if len(current) > 1:
                raise AssertionError("the second client's request ran beside the first")
            if request.meanwhile == "claimed" and history.policy.mode != "observe":  # a second client, beside the first
                other = Caller(request.body)
                await middleware(scope_of(key=request.key), other.receive, other.send)
                await settle_down(stage)  # it may have been refused because the store was away
                told.append(("beside", other.status, keep_body(other.body)))
            if request.cancelled_at == "app":
                cancelling.cancel()
                await asyncio.sleep(0)
            if request.status is None:
                raise Boom
            await answer(send, request.status, [b"x" * request.size])

        options = {} if history.quota is None else {"quota": history.quota}
        middleware = IdempotencyMiddleware(
            app, safe=stage.safe, scope=who, policy=history.policy, status_scope=who, **options
        )
        for request in history.requests:
            stage.disturb(request)
            current.append(request)
            caller = Caller(request.body)

            async def send(message: Any, request: Request = request, caller: Caller = caller) -> None:
                if request.cancelled_at == "send" and message["type"] == "http.response.start":
                    cancelling.cancel()
                    await asyncio.sleep(0)
                await caller.send(message)

            work = asyncio.ensure_future(middleware(scope_of(key=request.key), caller.receive, send))
            cancelling.begin(request, work)
            with suppress(Boom, asyncio.CancelledError):
                await work
            current.pop()
            await settle_down(stage)
            told.append((caller.status, keep_headers(caller.headers or ()), keep_body(caller.body), work.cancelled()))
        cancelling.request = None
        await stage.safe.async_performer().aclose()
        return stage.sum_up(told, logs)


async def settle_down(stage: Stage) -> None:
    """Let what a request has left in the background come to its end, before the next request: the follow-up of one that
    was cancelled, and the probe of a store that was away. Where a store has sockets, nothing else decides when they
    ask."""
    performer = stage.safe.async_performer()
    while left := [task for task in (*performer._detached, performer._probe) if task is not None and not task.done()]:
        await asyncio.wait(left)
        await asyncio.sleep(0)


def play_wsgi(history: History, seed: int, namespace: str, store: Any) -> Told:
    told: list[Any] = []
    with made_certain(seed), logged() as logs:
        stage = Stage(history, namespace, store)
        current: list[Request] = []

        def app(environ: Any, start: Any) -> Any:
            request = current[-1]
            if request.status is None:
                raise Boom
            start(f"{request.status} Status", [("content-type", "text/plain")])
            return [b"x" * request.size]

        options = {} if history.quota is None else {"quota": history.quota}
        middleware = WsgiMiddleware(app, safe=stage.safe, scope=who, policy=history.policy, status_scope=who, **options)
        for request in history.requests:
            stage.disturb(request)
            current.append(request)
            try:
                call = WsgiCall(middleware, request.body, request.key)
            except Boom as error:
                told.append((type(error),))
            else:
                told.append((call.line, keep_headers(call.headers), keep_body(call.body), type(call.error)))
        stage.end()
        return stage.sum_up(told, logs)


def explain(one: Told, other: Told) -> str:
    """The first thing in which two plays differ."""
    for name in Told._fields:
        left, right = getattr(one, name), getattr(other, name)
        for place, (a, b) in enumerate(zip(left, right, strict=False)):
            if a != b:
                return f"{name}[{place}]: straight {a!r}, flows {b!r}"
        if len(left) != len(right):
            return f"{name}: straight has {len(left)}, flows {len(right)}: {left[len(right) :]} {right[len(left) :]}"
    return ""
