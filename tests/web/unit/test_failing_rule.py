"""A `failures=` rule of the user that raises: the handler ran, so its ending is stored, because it must run only
once."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe import Policy
from retrysafe.core.states import State
from retrysafe.web.asgi import IdempotencyMiddleware
from tests.web.unit.harness import Caller, Counting, World, call, scope_of


def broken(status: int, error: BaseException | None) -> bool:
    raise RuntimeError("the rule is broken")


def who(view: Any) -> str:
    return "alice"


@pytest.mark.parametrize("status", [201, 402, 503])
@pytest.mark.parametrize("abandoned", ["uncertain", "rerun"])
async def test_an_answer_is_stored_and_replayed(status: int, abandoned: Any, caplog: pytest.LogCaptureFixture) -> None:
    world, app = World(), Counting(status)
    policy = Policy(failures=broken, abandoned=abandoned)
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, policy=policy)
    first, again = await call(middleware), await call(middleware)
    assert (first.status, first.body) == (again.status, again.body) == (status, b"made it")
    assert (app.runs, world.records[0].state) == (1, State.COMPLETED)
    assert "failures= raised" in caplog.text


async def test_an_error_is_stored_and_not_run_again() -> None:
    runs: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        runs.append(1)
        raise KeyError("boom")

    world, caller = World(), Caller(b"{}")
    middleware = IdempotencyMiddleware(app, safe=world.safe, scope=who, policy=Policy(failures=broken))
    with pytest.raises(KeyError, match="boom"):
        await middleware(scope_of(), caller.receive, caller.send)
    assert (caller.status, world.records[0].state) == (500, State.COMPLETED)
    assert (await call(middleware)).status == 500
    assert len(runs) == 1
