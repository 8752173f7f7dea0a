"""The trace hook: which events there are, what they say, and that nothing of it runs when it is off."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from retrysafe import Answer, IdempotencyMiddleware, Key, RetrySafe, Worker
from retrysafe.core.ops import Lookup, Stats
from retrysafe.engine.trace import TracedStore, TraceEvent, summarize_reply
from retrysafe.errors import StoreUnclear, UsageError
from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore
from retrysafe.stores.tiered import MemoryCache, Tiered
from retrysafe.testing.faults import AsyncFaultStore, Fault, FaultStore
from tests.web.unit.harness import call, scope_of

KEY, SCOPE, BODY = "canary-key", "canary-scope", "canary-body"

NEW = [
    "claim.started", "statement.started", "statement.complete", "claim.complete",
    "invoke.started", "invoke.complete",
    "settle.started", "statement.started", "statement.complete", "settle.complete",
]  # fmt: skip
REPLAY = NEW[:4]

Call = Callable[[], Any]


class Tracing:
    """A traced RetrySafe, a function of it, sync or async, and what was traced."""

    def __init__(self, safe: RetrySafe, events: list[TraceEvent], asynchronous: bool) -> None:
        self.safe = safe
        self.events = events
        self.asynchronous = asynchronous

    def call(self, function: Callable[[str], str]) -> str:
        async def await_function(body: str) -> str:
            await asyncio.sleep(0)
            return function(body)

        once = self.safe.once(f"{KEY}:{{body}}", scope=SCOPE)
        if not self.asynchronous:
            return once(function)(BODY)

        async def run() -> str:
            try:
                return await once(await_function)(BODY)
            finally:
                await self.safe.aclose()

        return asyncio.run(run())

    def take_names(self) -> list[str]:
        names = [event.name for event in self.events]
        self.events.clear()
        return names


@pytest.fixture(params=["memory-sync", "memory-async", "sqlite-sync", "sqlite-async"])
def tracing(request: pytest.FixtureRequest, memory_url: str, sqlite_url: str) -> Iterator[Tracing]:
    store, mode = request.param.split("-")
    events: list[TraceEvent] = []
    with RetrySafe({"memory": memory_url, "sqlite": sqlite_url}[store], trace=events.append) as safe:
        safe.migrate()
        yield Tracing(safe, events, mode == "async")


def echo(body: str) -> str:
    return body


def test_a_new_call_and_a_replay(tracing: Tracing) -> None:
    assert tracing.call(echo) == BODY
    assert tracing.take_names() == NEW
    assert tracing.call(echo) == BODY
    assert tracing.take_names() == REPLAY


def test_what_events_say(tracing: Tracing) -> None:
    tracing.call(echo)
    started, statement, stated, claimed, invoking, invoked, settling, *_, settled = tracing.events
    assert started.seconds is None
    assert started.details["op"] == "Claim"
    assert len(bytes.fromhex(started.details["id"])) == 32
    assert started.details["target"].endswith("echo") or "await_function" in started.details["target"]
    assert claimed.details["reply"] == stated.details["reply"] == "granted"
    known = {name: started.details[name] for name in ("id", "kind", "target")}
    assert invoking.details == {**known, "attempt": 1}
    assert known["kind"] == "function"
    assert settling.details["op"] == "Complete"
    assert settled.details["reply"] == "applied"
    assert claimed.seconds is not None
    assert stated.seconds is not None
    assert 0 <= stated.seconds <= claimed.seconds
    assert (started.span, statement.span, invoking.span, settling.span) == (
        claimed.span,
        stated.span,
        invoked.span,
        settled.span,
    )
    assert len({started.span, statement.span, invoking.span, settling.span}) == 4


def test_a_function_that_fails(tracing: Tracing) -> None:
    def fail(body: str) -> str:
        raise LookupError(BODY)

    with pytest.raises(LookupError):
        tracing.call(fail)
    *_, failed, _, _, _, settled = tracing.events
    assert failed.name == "invoke.failed"
    assert failed.details["error"] == "LookupError"
    assert failed.seconds is not None
    assert (settled.name, settled.details["op"]) == ("settle.complete", "Release")


def test_no_event_carries_a_key_a_scope_or_a_body(tracing: Tracing, caplog: pytest.LogCaptureFixture) -> None:
    """S28"""
    caplog.set_level(logging.DEBUG, "retrysafe.trace")
    failures = [LookupError(BODY)]

    def fail_once(body: str) -> str:
        if failures:
            raise failures.pop()
        return body

    with pytest.raises(LookupError):
        tracing.call(fail_once)
    tracing.call(fail_once)
    tracing.call(fail_once)
    said = "\n".join([*map(repr, tracing.events), *map(str, tracing.events), *caplog.messages])
    assert len(caplog.messages) == len(tracing.events) > 20
    assert "canary" not in said


# Where calls come in ------------------------------------------------------------------------------------


def check_operation(events: list[TraceEvent]) -> None:
    spans = [event.name for event in events if not event.name.startswith("statement")]
    plain = [name for name in NEW if not name.startswith("statement")]
    inside = plain.index("invoke.complete")
    assert spans == [*plain[:inside], "step.started", "step.complete", *plain[inside:]]
    (step,) = [event for event in events if event.name == "step.complete"]
    assert step.details["step"] == "charge"
    statements = [event.details["op"] for event in events if event.name == "statement.complete"]
    assert statements[0] == "Claim"
    assert statements[-1] == "Complete"
    assert "Advance" in statements


def test_operations_are_traced(sqlite_url: str) -> None:
    events: list[TraceEvent] = []
    with RetrySafe(sqlite_url, trace=events.append) as safe:
        safe.migrate()
        pay = safe.operation("pay")

        @pay.foreign
        def charge(number: int, *, key: str) -> int:
            return number

        @pay.body
        def place(number: int) -> Answer:
            return Answer(201, charge(number))

        assert pay(1, key=Key(KEY, SCOPE)).status == 201
    check_operation(events)


async def test_async_operations_are_traced(sqlite_url: str) -> None:
    events: list[TraceEvent] = []
    async with RetrySafe(sqlite_url, trace=events.append) as safe:
        safe.migrate()
        pay = safe.operation("pay")

        @pay.foreign
        async def charge(number: int, *, key: str) -> int:
            return number

        @pay.body
        async def place(number: int) -> Answer:
            return Answer(201, await charge(number))

        assert (await pay(1, key=Key(KEY, SCOPE))).status == 201
    check_operation(events)


def test_the_worker_is_traced(sqlite_url: str) -> None:
    events: list[TraceEvent] = []
    with RetrySafe(sqlite_url, trace=events.append) as safe:
        safe.migrate()
        Worker(safe).run_once()
    assert {"List", "Reap"} <= {event.details["op"] for event in events if event.name == "statement.complete"}


async def test_requests_are_traced(memory_url: str) -> None:
    events: list[TraceEvent] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async with RetrySafe(memory_url, trace=events.append) as safe:
        middleware = IdempotencyMiddleware(app, safe=safe, scope=lambda request: SCOPE)
        for _ in range(2):
            assert (await call(middleware, scope_of(key=KEY))).status == 201
    assert [event.name for event in events] == [*NEW[:4], *NEW[6:], *REPLAY]


# What is sent twice, and what is refused ---------------------------------------------------------------


def test_a_claim_that_is_sent_twice_has_two_statements() -> None:
    events: list[TraceEvent] = []
    store = FaultStore(MemoryStore(), [Fault(1, "applied")])
    with RetrySafe(store, trace=events.append) as safe:
        assert safe.once("x:{body}")(echo)(BODY) == BODY
    assert [event.name for event in events][:6] == [
        "claim.started",
        "statement.started",
        "statement.failed",
        "statement.started",
        "statement.complete",
        "claim.complete",
    ]
    assert events[2].details["error"] == StoreUnclear.__qualname__


async def test_a_call_that_is_cancelled_during_its_claim_says_what_became_of_it() -> None:
    events: list[TraceEvent] = []
    began, go_on = asyncio.Event(), asyncio.Event()

    class Slow(AsyncMemoryStore):
        async def execute(self, op: Any) -> Any:
            began.set()
            await go_on.wait()
            return await super().execute(op)

    safe = RetrySafe(async_store=Slow(MemoryStore()), trace=events.append)

    @safe.once("x:{number}")
    async def nothing(number: int) -> None: ...

    call = asyncio.ensure_future(nothing(1))
    await began.wait()
    call.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    ended = next(event for event in events if event.name == "claim.failed")
    assert ended.details["reply"] == "granted"
    assert ended.details["error"] == "CancelledError"
    assert [event.details["op"] for event in events if event.name == "settle.complete"] == ["Withdraw"]
    await safe.aclose()


def test_tools_and_batches_are_statements(memory_url: str) -> None:
    events: list[TraceEvent] = []
    with RetrySafe(memory_url, trace=events.append) as safe:
        safe.execute(Stats())
        safe.store.execute_many([Lookup(b"1" * 32), Lookup(b"2" * 32)])
        asyncio.run(safe.async_store.execute_many([Lookup(b"1" * 32), Stats()]))
    done = [event.details for event in events if event.name == "statement.complete"]
    assert done == [
        {"op": "Stats", "reply": "StatsReply"},
        {"op": "Lookup", "ops": 2, "reply": "2 items"},
        {"op": "Lookup+Stats", "ops": 2, "reply": "2 items"},
    ]


def test_replies_in_a_word(memory_url: str) -> None:
    with RetrySafe(memory_url) as safe:
        safe.once("x:{body}")(echo)(BODY)
        lookup = safe.execute(Lookup(b"1" * 32))
        assert summarize_reply(lookup) == "absent"
        assert [summarize_reply(each) for each in (True, False, 3, [1], (1, 2), "secret")] == [
            "applied", "refused", "3", "1 items", "2 items", "str",
        ]  # fmt: skip


# The hook itself --------------------------------------------------------------------------------------


def test_a_callback_that_fails_disturbs_nothing(memory_url: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: TraceEvent) -> None:
        raise RuntimeError("broken callback")

    with RetrySafe(memory_url, trace=fail) as safe:
        assert safe.once("x:{body}")(echo)(BODY) == BODY
    assert "the trace callback failed on claim.started" in caplog.text


def test_the_logger_may_be_enabled_before_or_after_construction(
    memory_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RetrySafe(memory_url) as safe:
        caplog.set_level(logging.DEBUG, "retrysafe.trace")
        safe.once("x:{body}")(echo)(BODY)
    assert [line.partition(" ")[0] for line in caplog.messages] == NEW
    assert caplog.messages[-1].endswith(" ms")
    with RetrySafe(memory_url) as safe:
        safe.once("x:{body}")(echo)(BODY)
    assert [line.partition(" ")[0] for line in caplog.messages] == NEW + REPLAY


def test_what_a_store_has_besides_the_seam_is_still_there() -> None:
    tiered = Tiered(FaultStore(MemoryStore(), []), MemoryCache())
    with RetrySafe(tiered, trace=lambda event: None) as safe:
        assert safe.store.capabilities.caches
        assert not hasattr(safe.store, "no_such_thing")
    store = AsyncFaultStore(AsyncMemoryStore(MemoryStore()), [])
    assert RetrySafe(async_store=store, trace=lambda event: None).async_store.script is store.script  # type: ignore[attr-defined]


def files_called(call: Call) -> list[str]:
    files: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


@pytest.mark.parametrize("trace", [None, lambda event: None], ids=["off", "on"])
def test_without_a_trace_no_function_of_it_is_called(
    memory_url: str, trace: Callable[[TraceEvent], None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "retrysafe.trace")
    with RetrySafe(memory_url, trace=trace) as safe:
        once = safe.once("x:{body}")(echo)
        once("first")  # the decision is made here
        files = files_called(lambda: once(BODY))
    assert any(each.endswith("retrysafe/engine/trace.py") for each in files) is (trace is not None)


def test_a_trace_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(UsageError, match="trace=5: give a function of one TraceEvent"):
        RetrySafe("memory://", trace=5)  # type: ignore[arg-type]


def test_the_first_calls_of_many_threads_wrap_the_store_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread has seen that there is no trace yet when it comes to the lock."""
    safe = RetrySafe("memory://")
    monkeypatch.setattr("retrysafe.engine.safe._is_trace_logged", lambda: True)
    threads = [threading.Thread(target=safe._start_trace) for _ in range(8)]
    with safe._trace_lock:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(safe.store, TracedStore)
    assert not isinstance(safe.store._store, TracedStore)
