"""What a client is told when the store fails: `store-unavailable` only if the protected work was not begun."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import Response

from retrysafe import Answer, Key, Policy, RetrySafe, open_async_store, open_store
from retrysafe.core.ops import Advance, Claim, Op
from retrysafe.engine.problem_documents import Problem
from retrysafe.errors import CommitUnclear, StepNotRecorded, StoreError, StoreUnavailable, StoreUnclear
from retrysafe.stores.base import Store
from retrysafe.stores.wrappers import StoreWrapper
from retrysafe.testing import AsyncFaultStore, Fault, Script
from retrysafe.testing.faults import Point
from retrysafe.web import problems
from retrysafe.web.fastapi import idempotent, install, respond
from tests.web.frameworks.calling import calling, is_problem, keyed


class RefusingStore(StoreWrapper):
    """Refuses recovery points as soon as something was charged, as a store does that has no room for the journal."""

    def __init__(self, store: Store, charges: list[str]) -> None:
        super().__init__(store)
        self._charges = charges

    def execute(self, op: Op[Any]) -> Any:
        if isinstance(op, Advance) and self._charges:
            raise StoreError("the item is too large; nothing was done")
        return super().execute(op)


async def test_a_step_that_was_sent_is_not_called_nothing(caplog: pytest.LogCaptureFixture) -> None:
    charges: list[str] = []
    name = "memory://refusing"
    safe = RetrySafe(RefusingStore(open_store(name), charges), async_store=open_async_store(name))
    charging = safe.operation("charging", version=1)

    @charging.foreign(timeout=5)
    def charge(*, key: str) -> str:
        charges.append(key)
        return "ch_1"

    @charging.foreign(timeout=5)
    def tell(*, key: str) -> None:
        pytest.fail("the step before it was not written down")

    @charging.body
    def pay() -> Answer:
        charged = charge()
        tell()
        return Answer(201, {"charge": charged})

    app = FastAPI()
    install(app, safe=safe)

    @app.post("/payments")
    def payments(key: Key = Depends(idempotent(lambda: "ann", strength="operation"))) -> Response:  # noqa: B008
        return respond(charging(key=key))

    async with calling(app) as http:
        told = await http.post("/payments", headers=keyed())
    assert len(charges) == 1
    assert is_problem(told, 503, "not-finished")
    assert (told.json()["retry_same_key"], told.json()["safe_new_key"]) == (True, False)
    assert "the item is too large" in caplog.text, "the operator reads the reason"


@pytest.mark.parametrize(("call", "name"), [(1, "store-unavailable"), (2, "outcome-unrecorded")])
@pytest.mark.parametrize("point", ["before", "applied"])
async def test_which_problem_an_outage_becomes(call: int, name: str, point: Point) -> None:
    """Away at the claim: this request did nothing. Away at the completion: the handler has run."""
    runs: list[int] = []
    at = f"memory://outage-{call}-{point}"
    store = AsyncFaultStore(open_async_store(at), Script([Fault(call, point, lasting=True)]))
    app = FastAPI()
    install(app, safe=RetrySafe(open_store(at), async_store=store, policy=Policy(lease=0.2)))

    @app.post("/payments")
    @idempotent(scope=lambda: "ann")
    async def payments() -> dict[str, int]:
        runs.append(1)
        return {"charged": 5}

    async with calling(app) as http:
        told = await http.post("/payments", headers=keyed())
    assert (len(runs), is_problem(told, 503 if call == 1 else 500, name)) == (call - 1, True)
    assert told.json()["safe_new_key"] is False, "an earlier request with this key may have done it"


async def test_why_store_unavailable_does_not_offer_a_new_key() -> None:
    """The first request was carried out and its answer was lost on the way. The retry meets a store that is away: it
    does nothing, and still a new key would charge twice."""
    runs: list[int] = []
    at = "memory://earlier"
    script = Script([Fault(2, "before", lasting=True, only=Claim)])
    app = FastAPI()
    install(app, safe=RetrySafe(open_store(at), async_store=AsyncFaultStore(open_async_store(at), script)))

    @app.post("/payments")
    @idempotent(scope=lambda: "ann")
    async def payments() -> dict[str, int]:
        runs.append(1)
        return {"charged": 5}

    async with calling(app) as http:
        assert (await http.post("/payments", headers=keyed("k"))).status_code == 200
        told = await http.post("/payments", headers=keyed("k"))
    assert (runs, is_problem(told, 503, "store-unavailable")) == ([1], True)
    assert told.json()["safe_new_key"] is False
    assert "do not send it with a new key" in told.json()["detail"].lower()


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (StoreUnavailable("away"), problems.UNAVAILABLE),
        (StoreUnclear("no reply to a claim"), problems.UNAVAILABLE),
        (StepNotRecorded("a step has run"), problems.NOT_FINISHED),
        (CommitUnclear("it may have been committed"), problems.UNKNOWN),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else one.anchor,
)
def test_only_an_error_before_the_work_becomes_store_unavailable(error: StoreError, problem: Problem) -> None:
    assert problems.problem_for_error(error) == problem
