"""DBOS behind an HTTP route. Outside: one key starts one workflow, and everybody gets its one answer. Inside: a step
that DBOS runs again does not do its work again.

    python -m examples.recipes.durable_dbos sqlite:///app.db http://provider.example 8000

DBOS records each finished step and goes on after the last one when the process is started again. What it cannot know is
whether a step that was cut off had its effect, nor that a second request with the same key asks for something else.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import uvicorn
from dbos import DBOS, SetWorkflowID
from fastapi import Depends, FastAPI, Header, HTTPException

from examples.recipes.warehouse import Effects, OrderIn, Provider
from retrysafe import Key, Policy, RetrySafe
from retrysafe.durable import workflow_id
from retrysafe.durable.dbos import step_key
from retrysafe.errors import OutcomeUnknown
from retrysafe.web.fastapi import idempotent, install


def current_account(x_account: Annotated[str, Header()]) -> str:
    """Stands for your authentication."""
    return x_account


def known(error: BaseException) -> bool:
    """A step may be tried again, unless nobody knows what the last try did."""
    return not isinstance(error, OutcomeUnknown)


def application(safe: RetrySafe, effects: Effects, lease: float = 60.0) -> FastAPI:
    @DBOS.step(retries_allowed=True, should_retry=known)
    def charge(order: OrderIn) -> str:
        return effects.charge(step_key("provider"), order)

    @DBOS.step()
    def enter(order: OrderIn) -> int:
        return effects.enter(step_key("ledger"), order)

    @DBOS.step(retries_allowed=True, should_retry=known)
    def label(order: OrderIn) -> str:
        return effects.label(step_key("printer"), order)

    @DBOS.workflow()
    def place_order(order: OrderIn) -> dict[str, Any]:
        return {"charge": charge(order), "entered": enter(order), "label": label(order)}

    @DBOS.step()
    def print_carelessly(order: OrderIn) -> str:
        return effects.provider.print_label(order)

    @DBOS.workflow()
    def careless(order: OrderIn) -> dict[str, Any]:
        """The same printer without a guard: what DBOS does by itself."""
        return {"label": print_carelessly(order)}

    app = FastAPI()
    install(app, safe=safe)
    # Running the route again only finds the workflow again, so a web process that died leaves nothing unknown.
    policy = Policy(abandoned="rerun", failures="release", busy="wait", lease=lease)
    claimed = Depends(idempotent(scope=current_account, policy=policy))

    @app.post("/orders", status_code=201)
    def orders(order: OrderIn, key: Key = claimed) -> dict[str, Any]:
        with SetWorkflowID(workflow_id(key, "order")):
            begun = DBOS.start_workflow(place_order, order)
        try:
            return begun.get_result()
        except OutcomeUnknown:  # the workflow has failed, on purpose: trying again would print again
            raise HTTPException(500, {"workflow": begun.workflow_id, "state": "a person has to look"}) from None

    @app.post("/unprotected", status_code=201)
    def unprotected(order: OrderIn, dbos_idempotency_key: Annotated[str, Header()]) -> dict[str, Any]:
        with SetWorkflowID(dbos_idempotency_key):
            return DBOS.start_workflow(careless, order).get_result()

    return app


def serve(store: str, provider: str, port: int, lease: float = 60.0, **options: Any) -> None:
    """`store`: SQLite or PostgreSQL, for retrysafe, for the ledger and for DBOS's own tables alike."""
    database = store.replace("postgresql://", "postgresql+psycopg://")
    safe = RetrySafe(store, **options)
    safe.migrate()
    effects = Effects(safe, database, Provider(provider), lease)
    app = application(safe, effects, lease)
    # DBOS tells its own unfinished workflows by version and executor: a fixed version also survives a redeploy.
    DBOS(
        config={
            "name": "orders",
            "system_database_url": database,
            "application_version": "1",
            "console_log_level": "WARNING",
        }
    )
    DBOS.launch()
    try:
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
    finally:
        DBOS.destroy()
        effects.close()
        safe.close()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
