"""The ASGI middleware without a server, message by message."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from retrysafe import Policy, current_lease
from retrysafe.core.ops import Claim, Complete
from retrysafe.core.problem_names import problem_name
from retrysafe.core.states import State
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.testing.faults import Fault
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.exchange_context import ResponseReady, current_exchange
from tests.web.unit.harness import Caller, Counting, World, answer, call, scope_of, who


def problem_of(caller: Caller) -> str:
    kind: str = json.loads(caller.body)["type"]
    return problem_name(kind)


# What passes through ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scope",
    [scope_of("GET"), scope_of("HEAD"), scope_of("OPTIONS"), {"type": "lifespan"}, {"type": "websocket"},
     scope_of(key=None), scope_of(path="/free")],
    ids=["GET", "HEAD", "OPTIONS", "lifespan", "websocket", "keyless optional", "left alone"],
)  # fmt: skip
async def test_what_is_not_protected_gets_the_very_same_objects(scope: Any) -> None:
    """A bug of a similar package: a faked `receive` on every route broke streaming everywhere."""
    seen: list[Any] = []

    async def app(*given: Any) -> None:
        seen.extend(given)

    caller = Caller(b"")
    policy = Policy(mode="optional")
    middleware = IdempotencyMiddleware(app, safe=World().safe, scope=who, policy=policy, routes={"POST /free": None})
    receive, send = caller.receive, caller.send
    await middleware(scope, receive, send)
    assert seen[0] is scope
    assert seen[1] is receive
    assert seen[2] is send


# Order --------------------------------------------------------------------------------------------


async def test_the_claim_is_before_the_application_and_the_answer_stored_before_the_first_byte() -> None:
    """Rule 4, I7."""
    world, story = World(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        story.append(("app", [op.__name__ for op in world.script.seen]))
        await answer(send, 201, [b"a", b"b"])

    caller = Caller(b"{}")

    async def send(message: Any) -> None:
        story.append((message["type"], [op.__name__ for op in world.script.seen]))

    await IdempotencyMiddleware(app, safe=world.safe, scope=who)(scope_of(), caller.receive, send)
    assert story == [
        ("app", ["Claim"]),
        ("http.response.start", ["Claim", "Complete"]),
        ("http.response.body", ["Claim", "Complete"]),
    ]


@pytest.mark.parametrize(
    ("headers", "pieces"), [([(b"content-type", b"text/event-stream")], [b"x"]), ([], [b"x" * 11])]
)
async def test_the_tombstone_is_before_the_first_byte_of_what_cannot_be_kept(headers: Any, pieces: Any) -> None:
    world = World()
    app = Counting(200, [*pieces, b"more"], headers)
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, policy=Policy(max_answer=10))
    caller = Caller(b"{}")
    states: list[State] = []

    async def send(message: Any) -> None:
        states.append(world.records[0].state)
        await caller.send(message)

    await middleware(scope_of(), caller.receive, send)
    again = await call(middleware)
    assert set(states) == {State.COMPLETED}
    assert caller.body == b"".join(pieces) + b"more"
    assert problem_of(again) == "answer-gone"
    assert app.runs == 1


async def test_a_body_is_read_before_the_claim_and_given_to_the_application_in_its_pieces() -> None:
    world, got = World(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            got.append(message["body"])
            more = message["more_body"]
        await answer(send, 200, [])

    await call(IdempotencyMiddleware(app, safe=world.safe, scope=who), scope_of(), b"a", b"", b"bc")
    assert got == [b"a", b"", b"bc"]


async def test_s23_a_body_that_does_not_come_is_408_and_nothing_is_claimed() -> None:
    world, app = World(), Counting()
    caller = Caller()
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, read_timeout=0.01)
    await middleware(scope_of(), caller.receive, caller.send)
    assert caller.status == 408
    assert problem_of(caller) == "too-slow"
    assert (app.runs, world.script.calls) == (0, 0)


async def test_a_client_that_leaves_within_its_body_claims_nothing() -> None:
    world, app, caller = World(), Counting(), Caller()
    caller.left.set()
    await IdempotencyMiddleware(app, safe=world.safe, scope=who)(scope_of(), caller.receive, caller.send)
    assert (app.runs, world.script.calls) == (0, 0)


# Whose it is --------------------------------------------------------------------------------------


@pytest.mark.parametrize("principal", [None, "", False, True, b"x", object()])
async def test_s1_without_a_principal_nothing_runs(principal: Any) -> None:
    world, app = World(), Counting()
    caller = await call(IdempotencyMiddleware(app, safe=world.safe, scope=lambda request: principal))
    assert caller.status == 500
    assert problem_of(caller) == "misconfigured"
    assert (app.runs, world.script.calls) == (0, 0)


async def test_s1_scope_may_be_async_and_a_number() -> None:
    async def account(request: Any) -> Any:
        return 4127

    world = World()
    await call(IdempotencyMiddleware(Counting(), safe=world.safe, scope=account))
    assert world.records[0].scope == "4127"


async def test_s2_a_row_moved_to_another_tenant_is_corrupt() -> None:
    world, app = World(), Counting()
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who)
    await call(middleware)
    record = world.records[0]
    world.memory._records[record.id] = record._replace(scope="bob")
    caller = await call(middleware)
    assert caller.status == 500
    assert problem_of(caller) == "corrupt-record"
    assert app.runs == 1


# When the route asks ------------------------------------------------------------------------------


def asking(runs: list[str], **more: Any) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert current_exchange() is scope[EXCHANGE]
        key = await scope[EXCHANGE].claim("alice", **more)
        runs.append(key.value if key else "-")
        lease = current_lease()
        assert (lease is not None) == (key is not None)
        await answer(send, 201, [b"done"])

    return app


async def test_a_route_that_asks_is_protected() -> None:
    world = World()
    runs: list[str] = []
    middleware = IdempotencyMiddleware(asking(runs, target="POST /{x}"), safe=world.safe)
    first, again = await call(middleware), await call(middleware)
    missing = await call(middleware, scope_of(key=None))
    assert first.body == again.body == b"done"
    assert again.headers["idempotent-replayed"] == "true"
    assert missing.status == 400
    assert runs == ["k1"]
    assert world.records[0].target == "POST /{x}"


async def test_what_the_application_makes_of_a_shortcut_is_discarded() -> None:
    world = World()

    async def stubborn(scope: Any, receive: Any, send: Any) -> None:
        try:
            await scope[EXCHANGE].claim("alice")
        except ResponseReady:
            await answer(send, 418, [b"my own page"])
            return
        await answer(send, 201, [b"done"])

    async def wrapping(scope: Any, receive: Any, send: Any) -> None:
        try:
            await scope[EXCHANGE].claim("alice")
        except ResponseReady as error:
            raise ExceptionGroup("task group", [RuntimeError(), error]) from None

    safe = world.safe
    assert (await call(IdempotencyMiddleware(stubborn, safe=safe))).body == b"done"
    assert (await call(IdempotencyMiddleware(stubborn, safe=safe))).body == b"done"
    assert (await call(IdempotencyMiddleware(wrapping, safe=safe))).body == b"done"


async def test_a_listed_route_that_never_asks_is_a_configuration_error(caplog: Any) -> None:
    world, app = World(), Counting()
    middleware = IdempotencyMiddleware(app, safe=world.safe, routes={"POST /pay": Policy()})
    for scope in (scope_of(), scope_of(key=None)):
        caller = await call(middleware, scope)
        assert caller.status == 500
        assert problem_of(caller) == "unprotected"
    assert "never claimed" in caplog.text
    refused = await call(IdempotencyMiddleware(Counting(401), safe=world.safe, routes={"POST /pay": Policy()}))
    assert refused.status == 401, "refused before the claim: nothing ran, nothing to complain about"


async def test_an_unlisted_route_that_never_asks_is_left_alone_and_reported_once(caplog: Any) -> None:
    middleware = IdempotencyMiddleware(Counting(), safe=World().safe)
    assert [(await call(middleware)).status for _ in range(2)] == [201, 201]
    assert caplog.text.count("the route never claims it") == 1
    assert middleware.settings.census.table()["POST /pay", "", "unclaimed"] == 2


async def test_asking_twice_or_too_late_is_a_mistake() -> None:
    async def twice(scope: Any, receive: Any, send: Any) -> None:
        await scope[EXCHANGE].claim("alice")
        await scope[EXCHANGE].claim("alice")

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200, [])
        await scope[EXCHANGE].claim("alice")

    for app in (twice, late):
        with pytest.raises(UsageError, match="asks for its claim"):
            await call(IdempotencyMiddleware(app, safe=World().safe))


async def test_asking_with_required_below_an_optional_middleware_is_a_mistake() -> None:
    app = asking([], policy=Policy(mode="required"))
    middleware = IdempotencyMiddleware(app, safe=World().safe, policy=Policy(mode="optional"))
    with pytest.raises(UsageError, match="same mode"):
        await call(middleware, scope_of(key=None))


async def test_a_claim_can_be_handed_over_or_not_made_at_all() -> None:
    world = World()

    async def operation(scope: Any, receive: Any, send: Any) -> None:
        await scope[EXCHANGE].claim("alice")
        held = scope[EXCHANGE].hand_over_claim()
        assert held.record.state is State.CLAIMED
        await answer(send, 202, [b"later"])

    async def transaction(scope: Any, receive: Any, send: Any) -> None:
        task = await scope[EXCHANGE].identify("alice")
        assert (task.key.value, task.key.scope) == ("k2", "alice")
        await answer(send, 201, [b"mine"])

    assert (await call(IdempotencyMiddleware(operation, safe=world.safe))).body == b"later"
    assert world.records[0].state is State.CLAIMED, "whoever took it settles it"
    routes = {"POST /pay": Policy()}
    told = await call(IdempotencyMiddleware(transaction, safe=world.safe, routes=routes), scope_of(key="k2"))
    assert told.body == b"mine"


# How it ends --------------------------------------------------------------------------------------


async def test_an_error_page_sent_before_the_error_is_the_answer() -> None:
    """Starlette's ServerErrorMiddleware answers 500 and raises the error again."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 500, [b"sorry"])
        raise RuntimeError("boom")

    world, caller = World(), Caller(b"{}")
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who)
    with pytest.raises(RuntimeError, match="boom"):
        await middleware(scope_of(), caller.receive, caller.send)
    again = await call(middleware)
    assert (caller.status, caller.body) == (again.status, again.body) == (500, b"sorry")


@pytest.mark.parametrize(("failures", "state"), [("store", State.COMPLETED), ("release", State.RELEASED)])
async def test_an_error_in_the_middle_of_an_answer(failures: Any, state: State) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("boom")

    world, caller = World(), Caller(b"{}")
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, policy=Policy(failures=failures))
    with pytest.raises(RuntimeError, match="boom"):
        await middleware(scope_of(), caller.receive, caller.send)
    assert caller.status == 500
    assert b"half" not in caller.body
    assert b"boom" not in caller.body
    assert world.records[0].state is state


async def test_an_application_that_says_nothing_has_failed() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    assert (await call(IdempotencyMiddleware(app, safe=World().safe, scope=who))).status == 500


async def test_s9_a_line_break_in_a_header_is_never_stored_nor_sent() -> None:
    world, caller = World(), Caller(b"{}")
    app = Counting(headers=[(b"x-a", b"1\r\nset-cookie: evil=1")])
    with pytest.raises(ValueError, match="line break"):
        await IdempotencyMiddleware(app, safe=world.safe, scope=who)(scope_of(), caller.receive, caller.send)
    assert caller.status == 500
    assert "x-a" not in caller.headers
    assert b"evil" not in repr(world.records[0].answer).encode()


@pytest.mark.parametrize("bad", [("x-a", "1\r\nset-cookie: evil=1"), ("x a", "1"), ("x-a", "\0"), ("x-a", "€")])
async def test_s9_a_poisoned_record_is_refused_and_not_sent(bad: tuple[str, str]) -> None:
    world, app = World(), Counting()
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who)
    await call(middleware)
    record = world.records[0]
    from retrysafe import Answer

    world.memory._records[record.id] = record._replace(answer=Answer(200, b"x", [bad]))
    told = await call(middleware)
    assert problem_of(told) == "corrupt-record"
    world.memory._records[record.id] = record._replace(answer=Answer(999, b"x"))
    assert problem_of(await call(middleware)) == "corrupt-record"
    assert app.runs == 1


async def test_store_down_at_the_claim_runs_nothing_and_recovers() -> None:
    world, app = World(Fault(1, "before", only=Claim, lasting=True)), Counting()
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who)
    down = await call(middleware)
    assert (down.status, problem_of(down), app.runs) == (503, "store-unavailable", 0)
    world.script.repair()
    assert (await call(middleware)).status == 201


@pytest.mark.parametrize("pieces", [[b"x"], [b"x" * 11, b"y"]], ids=["kept", "tombstone"])
async def test_store_down_at_completion_sends_the_truth_instead(pieces: list[bytes]) -> None:
    world = World(Fault(1, "before", only=Complete, lasting=True))
    middleware = IdempotencyMiddleware(Counting(200, pieces), safe=world.safe, scope=who, policy=Policy(max_answer=10))
    told = await call(middleware)
    assert (told.status, problem_of(told)) == (500, "outcome-unrecorded")
    assert json.loads(told.body)["retry_same_key"] is True


async def test_a_lost_reply_to_completion_is_found_out_and_nobody_notices() -> None:
    world, app = World(Fault(1, "applied", only=Complete)), Counting()
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who)
    first, again = await call(middleware), await call(middleware)
    assert first.body == again.body == b"made it"
    assert app.runs == 1


async def test_an_attempt_that_was_replaced_does_not_give_its_answer() -> None:
    world = World()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        record = world.records[0]
        world.memory._records[record.id] = record._replace(attempt=2, token=b"another" + bytes(9))
        await answer(send, 201, [b"stale"])

    told = await call(IdempotencyMiddleware(app, safe=world.safe, scope=who))
    assert problem_of(told) == "lease-lost"
    assert b"stale" not in told.body


# Leaving and stopping -----------------------------------------------------------------------------


async def test_the_application_does_not_hear_of_a_disconnect_while_it_works() -> None:
    """The disconnect is neither faked nor passed on early; after the answer the application gets the real one."""
    world = World()
    heard: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        listening = asyncio.create_task(receive())
        caller.left.set()
        for _ in range(10):
            await asyncio.sleep(0)
        heard.append(listening.done())
        await answer(send, 201, [b"done"])
        heard.append((await listening)["type"])

    caller = Caller(b"{}")
    await IdempotencyMiddleware(app, safe=world.safe, scope=who)(scope_of(), caller.receive, caller.send)
    assert heard == [False, "http.disconnect"]
    assert world.records[0].state is State.COMPLETED


async def test_a_client_that_is_gone_when_the_answer_is_sent_changes_nothing() -> None:
    world, app, caller = World(), Counting(), Caller(b"{}")

    async def send(message: Any) -> None:
        raise OSError("the client is gone")

    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who)
    with pytest.raises(OSError, match="gone"):
        await middleware(scope_of(), caller.receive, send)
    assert (await call(middleware)).body == b"made it"
    assert app.runs == 1


async def test_a_cancelled_request_finishes_its_work_within_the_grace() -> None:
    world, began, go = World(), asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        began.set()
        await go.wait()
        await answer(send, 201, [b"done"])

    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, grace=600)
    request = asyncio.create_task(call(middleware))
    await began.wait()
    request.cancel()
    await asyncio.sleep(0)
    request.cancel()  # servers do it more than once
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert world.records[0].state is State.COMPLETED
    assert (await call(middleware)).body == b"done"


@pytest.mark.parametrize(("abandoned", "state"), [("uncertain", State.UNCERTAIN), ("rerun", State.RELEASED)])
async def test_beyond_the_grace_it_is_stopped_and_written_down(abandoned: Any, state: State) -> None:
    world, began = World(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    policy = Policy(abandoned=abandoned)
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, policy=policy, grace=0.01)
    request = asyncio.create_task(call(middleware))
    await began.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert world.records[0].state is state


async def test_cancelled_while_it_claims_the_key_is_given_back() -> None:
    """The claim was granted, but the work did not begin: no lease is left."""
    world, app = World(), Counting()
    inner = world.safe.async_store
    claiming = asyncio.Event()

    class Slow:
        capabilities = inner.capabilities

        async def execute(self, op: Any) -> Any:
            reply = await inner.execute(op)
            if isinstance(op, Claim) and not claiming.is_set():
                claiming.set()
                await asyncio.sleep(0.01)
            return reply

        execute_many, migrate, aclose = inner.execute_many, inner.migrate, inner.aclose

    safe = RetrySafe(async_store=Slow())
    request = asyncio.create_task(call(IdempotencyMiddleware(app, safe=safe, scope=who)))
    await claiming.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert app.runs == 0
    assert world.records[0].state is State.RELEASED


# Load ---------------------------------------------------------------------------------------------


async def test_waiters_beyond_the_cap_are_told_to_come_back_at_once() -> None:
    world, began, go = World(), asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        began.set()
        await go.wait()
        await answer(send, 201, [b"done"])

    policy = Policy(busy="wait", wait=600)
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, policy=policy, waiters=1)
    first = asyncio.create_task(call(middleware))
    await began.wait()
    crowd = [asyncio.create_task(call(middleware)) for _ in range(3)]
    done, _ = await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 2:
        done, _ = await asyncio.wait(crowd, timeout=0.01)
    go.set()
    answers = [await one for one in [first, *crowd]]
    assert sorted(one.status for one in answers) == [201, 201, 409, 409]
    assert middleware.settings.waiters.enter("alice"), "everybody who waited has left"


async def test_s7_quotas_refuse_new_keys_and_never_a_replay() -> None:
    from retrysafe.web.traffic import Quota

    world, app = World(), Counting()
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, quota=Quota(live=2))
    for key in ("a", "b"):
        assert (await call(middleware, scope_of(key=key))).status == 201
    over = await call(middleware, scope_of(key="c"))
    other = await call(middleware, scope_of(key="c", headers=[(b"x", b"y")]) | {"headers": [
        (b"authorization", b"bob"), (b"idempotency-key", b"c"),
    ]})  # fmt: skip
    replay = await call(middleware, scope_of(key="a"))
    assert (over.status, problem_of(over)) == (429, "quota")
    assert "retry-after" in over.headers
    assert other.status == 201, "another tenant is not touched"
    assert replay.headers["idempotent-replayed"] == "true"
    assert len(world.records) == 3, "the 429 was not stored"


async def test_s7_concurrent_leases_are_limited_for_each_scope() -> None:
    from retrysafe.web.traffic import Quota

    world, began, go = World(), asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        began.set()
        await go.wait()
        await answer(send, 201, [])

    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, quota=Quota(leases=1))
    first = asyncio.create_task(call(middleware, scope_of(key="a")))
    await began.wait()
    assert (await call(middleware, scope_of(key="b"))).status == 429
    go.set()
    await first
    assert (await call(middleware, scope_of(key="b"))).status == 201


async def test_extensions_by_which_an_answer_would_go_past_us_are_hidden() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["extensions"])
        await answer(send, 200, [])

    offered = {"http.response.pathsend": {}, "tls": {"a": 1}}
    await call(IdempotencyMiddleware(app, safe=World().safe, scope=who), scope_of(extensions=offered))
    assert seen == [{"tls": {"a": 1}}]


async def test_the_fingerprint_of_a_route_can_be_its_own() -> None:
    from retrysafe.web.routes import Route

    app = Counting()
    amount = Route(Policy(), fingerprint=lambda view, body: str(json.loads(body)["amount"]))
    middleware = IdempotencyMiddleware(app, safe=World().safe, scope=who, routes={"POST /pay": amount})
    first = await call(middleware, scope_of(), b'{"amount": 1, "at": 1}')
    again = await call(middleware, scope_of(), b'{"amount": 1, "at": 2}')
    other = await call(middleware, scope_of(), b'{"amount": 2, "at": 1}')
    assert first.body == again.body
    assert other.status == 422
