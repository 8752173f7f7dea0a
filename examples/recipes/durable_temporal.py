"""Temporal behind an HTTP route. Outside: one key starts one workflow, and everybody gets its one answer. Inside: an
activity that Temporal runs again does not do its work again.

    python -m examples.recipes.durable_temporal worker 127.0.0.1:7233 sqlite:///app.db http://provider.example
    python -m examples.recipes.durable_temporal web 127.0.0.1:7233 sqlite:///app.db 8000

Temporal keeps one open run for an id, and runs an activity until it has heard of its end. What it cannot know is if
a worker that fell silent had done its work, nor that a second request with the same key asks for something else.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():  # they are not used in workflows; the sandbox need not load them anew
    import uvicorn
    from fastapi import Depends, FastAPI, Header, HTTPException

    from examples.recipes.warehouse import Effects, OrderIn, Provider
    from retrysafe import Key, Policy, RetrySafe
    from retrysafe.durable import workflow_id
    from retrysafe.durable.temporal import activity_key
    from retrysafe.web.fastapi import idempotent, install

QUEUE = "orders"
# Nobody knows what the last attempt did: another one would do it again.
RETRIES = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), non_retryable_error_types=["OutcomeUnknown", "FingerprintMismatch"]
)


# Inside -----------------------------------------------------------------------------------------


class Activities:
    def __init__(self, effects: Effects) -> None:
        self.effects = effects

    @activity.defn
    def charge(self, order: OrderIn) -> str:
        return self.effects.charge(activity_key("provider"), order)

    @activity.defn
    def enter(self, order: OrderIn) -> int:
        return self.effects.enter(activity_key("ledger"), order)

    @activity.defn
    def label(self, order: OrderIn) -> str:
        return self.effects.label(activity_key("printer"), order)

    @activity.defn
    def print_carelessly(self, order: OrderIn) -> str:
        return self.effects.provider.print_label(order)


@dataclass
class Job:
    order: OrderIn
    silence: float = 60.0
    """How long an activity may take; a worker that died is noticed after it."""


@workflow.defn
class PlaceOrder:
    @workflow.run
    async def run(self, job: Job) -> dict[str, Any]:
        return {
            "charge": await act(Activities.charge, job),
            "entered": await act(Activities.enter, job),
            "label": await act(Activities.label, job),
        }


@workflow.defn
class Careless:
    """The same printer without a guard: what Temporal does by itself."""

    @workflow.run
    async def run(self, job: Job) -> dict[str, Any]:
        return {"label": await act(Activities.print_carelessly, job)}


async def act(what: Any, job: Job) -> Any:
    silence = timedelta(seconds=job.silence)
    return await workflow.execute_activity_method(what, job.order, start_to_close_timeout=silence, retry_policy=RETRIES)


async def work(
    temporal: str, store: str, provider: str, lease: float = 60.0, sticky: float = 10.0, **options: Any
) -> None:
    """A worker, until it is stopped. `store` is also where the ledger is: SQLite or PostgreSQL. `sticky` is how long a
    workflow waits for the worker it was on before another one may have it."""
    safe = RetrySafe(store, **options)
    safe.migrate()
    database = store.replace("postgresql://", "postgresql+psycopg://")
    effects = Effects(safe, database, Provider(provider), lease)
    mine = Activities(effects)
    activities = [mine.charge, mine.enter, mine.label, mine.print_carelessly]
    client = await Client.connect(temporal)
    with ThreadPoolExecutor(4) as threads, safe:
        worker = Worker(
            client,
            task_queue=QUEUE,
            workflows=[PlaceOrder, Careless],
            activities=activities,
            activity_executor=threads,
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=sticky),
        )
        await worker.run()


# Outside ----------------------------------------------------------------------------------------


def current_account(x_account: Annotated[str, Header()]) -> str:
    """Stands for your authentication."""
    return x_account


async def the_one_run(client: Client, job: Job, workflow_id: str) -> dict[str, Any]:
    """Start it, or find it: while it runs by the conflict policy, and when it has ended by the refusal to begin anew.

    The default reuse policy begins a second run under the id of one that has ended."""
    try:
        begun = await client.start_workflow(
            PlaceOrder.run,
            job,
            id=workflow_id,
            task_queue=QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        )
    except WorkflowAlreadyStartedError:
        begun = client.get_workflow_handle_for(PlaceOrder.run, workflow_id)
    return await begun.result()


def application(safe: RetrySafe, client: Client, lease: float = 60.0, silence: float = 60.0) -> FastAPI:
    app = FastAPI()
    install(app, safe=safe)
    # Running the route again only finds the workflow again, so a web process that died leaves nothing unknown.
    policy = Policy(abandoned="rerun", failures="release", busy="wait", lease=lease)
    claimed = Depends(idempotent(scope=current_account, policy=policy))

    @app.post("/orders", status_code=201)
    async def orders(order: OrderIn, key: Key = claimed) -> dict[str, Any]:
        name = workflow_id(key, "order")
        try:
            return await the_one_run(client, Job(order, silence), name)
        except WorkflowFailureError:
            raise HTTPException(500, {"workflow": name, "state": "a person has to look"}) from None

    return app


async def serve(temporal: str, store: str, port: int, lease: float = 60.0, silence: float = 60.0) -> None:
    async with RetrySafe(store) as safe:
        safe.migrate()
        app = application(safe, await Client.connect(temporal), lease, silence)
        await uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")).serve()


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        asyncio.run(work(*sys.argv[2:5]))
    else:
        asyncio.run(serve(sys.argv[2], sys.argv[3], int(sys.argv[4])))
