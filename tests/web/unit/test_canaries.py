"""S28: one scan over everything that we emit besides the answer. No key, no scope, no body, no credentials and no text
of the user's steps is in logs, events, counters, notes and problems.

The framework reports an exception that escapes a handler, with its whole text. This test is about our own log lines.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from retrysafe import Answer, Key, Policy, RetrySafe
from retrysafe.core.fingerprint import fingerprint_http
from retrysafe.core.ops import Claim, Complete, List, Suspect
from retrysafe.engine.exposition import format_metrics
from retrysafe.engine.guard import Task
from retrysafe.errors import (
    CorruptRecord,
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    NoAnswer,
    NotFinished,
    OutcomeUnknown,
    RetrySafeError,
    RolledBack,
    ScopeRequired,
    StoredFailure,
    StoreUnavailable,
    TransactionSplit,
)
from retrysafe.testing.faults import Fault
from retrysafe.web import asgi, wsgi
from retrysafe.web.problems import describe_error
from retrysafe.web.starlette import add_problem_handlers, idempotent
from retrysafe.webhooks import replies
from tests.web.frameworks.calling import calling
from tests.web.unit.harness import Counting, World, WsgiCall, call, scope_of

KEY, SCOPE = "canary-key-4242", "canary-scope-77"
WORDS = "canary-words of a step"
BODY = b'{"card": "canary-body-4111"}'
TOKEN = "Bearer canary-token-99"


class Scan:
    """Everything that was emitted."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.told: list[str] = []

    def watch(self, safe: RetrySafe) -> RetrySafe:
        safe.events.subscribe(lambda event: self.told.append(repr(event)))
        return safe

    def add(self, *told: Any) -> None:
        self.told += map(str, told)

    def logged(self) -> list[str]:
        formatter = logging.Formatter("%(levelname)s %(name)s %(message)s")
        return [formatter.format(record) for record in self._caplog.records if record.name.startswith("retrysafe")]

    def check(self) -> None:
        everything = [*self.told, *self.logged()]
        assert everything, "nothing was said: there is nothing to scan"
        assert [line for line in everything if "canary" in line] == []


@pytest.fixture
def scan(caplog: pytest.LogCaptureFixture) -> Iterator[Scan]:
    caplog.set_level(logging.DEBUG)
    return Scan(caplog)


def asked(**more: Any) -> dict[str, Any]:
    return scope_of(key=KEY, headers=[(b"cookie", TOKEN.encode())], **more)


def whose(request: Any) -> str:
    return SCOPE


async def both(scan: Scan, world: World, times: int = 2, scope: Any = whose, **options: Any) -> list[int]:
    """The same requests through both middlewares; returns their results and the records."""
    scan.watch(world.safe)
    statuses = []

    def plain(environ: Any, start_response: Any) -> list[bytes]:
        start_response("201 Created", [])
        return [b"canary-answer"]

    around = asgi.IdempotencyMiddleware(Counting(pieces=[b"canary-answer"]), safe=world.safe, scope=scope, **options)
    within = wsgi.IdempotencyMiddleware(plain, safe=world.safe, scope=scope, **options)
    for _ in range(times):
        caller = await call(around, asked(), BODY)
        called = WsgiCall(within, body=BODY, key=KEY, HTTP_COOKIE=TOKEN)
        statuses += [caller.status, called.status]
        for status, body in ((caller.status, caller.body), (called.status, called.body)):
            scan.add(body if status >= 400 else "")
    scan.add(around.settings.census.table(), within.settings.census.table(), world.safe.events.counts())
    scan.add(*(f"{record.target} {record.note}" for record in world.records))
    scan.add(repr(around.settings.safe), repr(world.safe), format_metrics(world.safe.figures.snapshot()))
    return statuses


async def test_ordinary_life(scan: Scan) -> None:
    world = World()
    assert await both(scan, world) == [201] * 4
    mismatch = await call(
        asgi.IdempotencyMiddleware(Counting(), safe=world.safe, scope=whose), asked(), b'{"canary": "canary-other"}'
    )
    assert mismatch.status == 422
    scan.add(mismatch.body)
    scan.check()


@pytest.mark.parametrize("mode", ["required", "observe"])
@pytest.mark.parametrize("only", [Claim, Complete])
async def test_a_store_that_is_down(scan: Scan, only: Any, mode: Any) -> None:
    world = World(Fault(1, "before", lasting=True, only=only))
    await both(scan, world, policy=Policy(mode=mode))
    assert any("the store is down" in line for line in scan.logged()), "the operator hears what the store said"
    scan.check()


async def test_a_scope_that_cannot_be_one(scan: Scan) -> None:
    for bad in (SCOPE + "\0", SCOPE * 500):
        assert await both(scan, World(), scope=lambda request, bad=bad: bad) == [500] * 4
    assert any("ScopeRequired" in line for line in scan.logged())
    scan.check()


async def test_an_outcome_nobody_knows_and_a_record_nobody_can_read(scan: Scan) -> None:
    for corrupt in (False, True):
        world = World()
        world.safe.migrate()
        task = Task(Key(KEY, SCOPE), world.safe.namespace, "POST /pay", print_of(world), Policy())
        claim = task.build_claim()
        fence = world.safe.execute(claim).record.fence  # type: ignore[union-attr]  # it is granted
        if corrupt:
            world.safe.execute(Complete(claim.id, fence, Answer(200, b"canary-answer", [("x", "canary\nsplit")])))
        else:
            world.safe.execute(Suspect(claim.id, fence, "lost"))
        assert await both(scan, world) == [500] * 4
    logged = " ".join(scan.logged())
    assert "OutcomeUnknown" in logged
    assert "CorruptRecord" in logged
    assert claim.id.hex() in logged, "the record can be looked up"
    scan.check()


def print_of(world: World) -> Any:
    """The fingerprint of the requests in this file."""

    return fingerprint_http("POST", "/pay", "", "application/json", [BODY])


async def test_a_handler_that_fails_leaves_no_words_behind(scan: Scan) -> None:
    world = World()
    scan.watch(world.safe)

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError(WORDS)

    for policy in (Policy(failures="release"), Policy()):
        around = asgi.IdempotencyMiddleware(fails, safe=world.safe, scope=whose, policy=policy)
        with pytest.raises(RuntimeError, match="canary"):
            await call(around, asked(), BODY)
    scan.add(*(f"{record.target} {record.note} {record.answer}" for record in world.records))
    scan.check()


@pytest.mark.parametrize("attempts", [1, 5])
async def test_a_step_of_an_operation_that_fails(scan: Scan, attempts: int) -> None:
    """Its text is in the journal, which a key ring encrypts, and in the error's cause; nowhere else."""
    safe = scan.watch(RetrySafe("memory://"))
    order = safe.operation("order", version=1, max_attempts=attempts)

    @order.foreign(timeout=1, tries=1)
    async def charge(*, key: str) -> str:
        raise ConnectionError(WORDS)

    @order.body
    async def place() -> Answer:
        return Answer(201, await charge())

    @idempotent(whose, strength="operation")
    async def orders(request: Request) -> Any:
        return await order.start(key=request.state.key)

    app = Starlette(routes=[Route("/orders", orders, methods=["POST"])])
    app.add_middleware(asgi.IdempotencyMiddleware, safe=safe)
    add_problem_handlers(app)
    async with calling(app) as http:
        told = [await http.post("/orders", headers={"Idempotency-Key": KEY}, content=BODY) for _ in range(2)]
    assert {one.status_code for one in told} <= {500, 503}
    scan.add(*(one.text for one in told))
    page = await safe.aexecute(List(limit=10))
    scan.add(*(f"{record.target} {record.point} {record.note}" for record in page.records))
    assert page.records
    scan.check()


ERRORS: list[RetrySafeError] = [
    FingerprintMismatch(KEY, 0),
    InProgress(KEY, 1),
    RolledBack(KEY, WORDS),
    NotFinished("order", KEY, "charge", WORDS),
    OutcomeUnknown(KEY, 0, WORDS),
    LeaseLost(KEY, 1),
    StoredFailure("pay", "ValueError", WORDS),
    TransactionSplit(KEY),
    NoAnswer(KEY),
    ScopeRequired(SCOPE),
    StoreUnavailable(f"refused: ({KEY}, {SCOPE}) and {KEY!r}\nDETAIL: more"),
    CorruptRecord(b"x" * 32, f"it belongs to {SCOPE!r}"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_in_one_line_without_what_is_the_clients(error: RetrySafeError) -> None:
    told = describe_error(error, KEY, SCOPE)
    assert "canary" not in told
    assert type(error).__name__ in told
    assert len(told.splitlines()) == 1


def test_a_short_key_is_struck_out_where_it_is_quoted_and_leaves_words_whole() -> None:
    told = describe_error(StoreUnavailable("claim '1' on 127.0.0.1:5432 failed"), "1")
    assert told == "StoreUnavailable: claim '…' on 127.0.0.1:5432 failed"


def test_a_webhook_that_failed_by_us_is_logged_without_its_id(scan: Scan) -> None:
    for error in ERRORS:
        if not isinstance(error, StoreUnavailable | CorruptRecord | TransactionSplit | NoAnswer | ScopeRequired):
            scan.add(json.loads(replies.error_response(error, "stripe").body or b"{}"))
    scan.check()


def test_the_scan_finds_what_it_looks_for(scan: Scan) -> None:
    logging.getLogger("retrysafe.web").error("a %s", KEY)
    with pytest.raises(AssertionError):
        scan.check()
