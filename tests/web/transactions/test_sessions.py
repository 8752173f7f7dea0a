"""A typical FastAPI application: SQLAlchemy sessions, models in and out, no explicit flush."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Request
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from retrysafe import Policy
from retrysafe.errors import SyncAsyncMismatch, UsageError
from retrysafe.web.fastapi import idempotent, install
from tests.transactions.conftest import postgres_world, sqlite_world
from tests.transactions.rigs import World, sqlalchemy_engine
from tests.web.frameworks.calling import calling, is_problem, is_replay, keyed
from tests.web.transactions.crashing import Conflict

DRIVERS = {"sqlite": ("sqlite", "sqlite+aiosqlite"), "postgres": ("postgresql+psycopg", "postgresql+asyncpg")}
WORLDS = {"sqlite": sqlite_world, "postgres": postgres_world}


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"
    value: Mapped[str] = mapped_column(primary_key=True)


class Payment(BaseModel):
    value: str


def who() -> str:
    return "alice"


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.store(name)) for name in WORLDS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, World]]:
    made = WORLDS[request.param](request, tmp_path)
    yield request.param, made
    made.safe.close()


@pytest.fixture(params=["def", "async def"])
def app(request: pytest.FixtureRequest, place: tuple[str, World]) -> FastAPI:
    store, world = place
    plain, looped = DRIVERS[store]
    made = FastAPI()
    install(made, safe=world.safe)
    if request.param == "def":
        protect = idempotent(who, strength="transaction", tx=sessionmaker(sqlalchemy_engine(world, plain)))

        @made.post("/pay", status_code=201)
        def pay(payment: Payment, session: Session = Depends(protect)) -> Payment:  # noqa: B008
            session.add(Effect(value=payment.value))
            return payment
    else:
        protect = idempotent(who, strength="transaction", tx=async_sessionmaker(sqlalchemy_engine(world, looped)))

        @made.post("/pay", status_code=201)
        async def apay(payment: Payment, session: AsyncSession = Depends(protect)) -> Payment:  # noqa: B008
            session.add(Effect(value=payment.value))
            return payment

    return made


async def test_what_a_session_holds_back_is_written_before_the_receipt(app: FastAPI, place: tuple[str, World]) -> None:
    world = place[1]
    async with calling(app) as http:
        first, again = [await http.post("/pay", json={"value": "a"}, headers=keyed("k1")) for _ in range(2)]
    assert (first.status_code, first.json()) == (201, {"value": "a"})
    assert is_replay(first, again)
    assert world.effects() == ["a"]
    await world.safe.async_store.aclose()


async def test_a_pending_insert_that_fails_is_a_failure(app: FastAPI, place: tuple[str, World]) -> None:
    world = place[1]
    async with calling(app) as http:
        await http.post("/pay", json={"value": "a"}, headers=keyed("k1"))
        twin, again = [await http.post("/pay", json={"value": "a"}, headers=keyed("k2")) for _ in range(2)]
    assert is_problem(twin, 500, "failed")
    assert is_replay(twin, again)
    assert world.effects() == ["a"]
    await world.safe.async_store.aclose()


async def test_a_body_that_does_not_validate_leaves_only_its_answer(app: FastAPI, place: tuple[str, World]) -> None:
    async with calling(app) as http:
        first, again = [await http.post("/pay", json={}, headers=keyed("k1")) for _ in range(2)]
    assert first.status_code == 422
    assert is_replay(first, again)
    assert place[1].effects() == []
    await place[1].safe.async_store.aclose()


async def test_middleware_that_fails_after_the_handler_undoes_it(app: FastAPI, place: tuple[str, World]) -> None:
    """A failure between the handler and the middleware belongs to the request: nothing is half done."""
    fail = [True]
    app.user_middleware.reverse()  # below, ours becomes the outermost again

    @app.middleware("http")
    async def failing(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        if fail:
            raise ValueError("after the handler")
        return response

    app.user_middleware.reverse()
    async with calling(app) as http:
        first, again = [await http.post("/pay", json={"value": "a"}, headers=keyed("k1")) for _ in range(2)]
    assert first.status_code == 500
    assert is_replay(first, again)
    assert place[1].effects() == []
    await place[1].safe.async_store.aclose()


async def test_a_server_that_shuts_down_undoes_what_is_not_committed(place: tuple[str, World]) -> None:
    store, world = place
    app, entered = FastAPI(), asyncio.Event()
    install(app, safe=world.safe, grace=0.01)
    tx = async_sessionmaker(sqlalchemy_engine(world, DRIVERS[store][1]))
    protect = idempotent(who, strength="transaction", tx=tx)

    @app.post("/pay")
    async def pay(session: AsyncSession = Depends(protect)) -> None:  # noqa: B008
        session.add(Effect(value="a"))
        await session.flush()
        entered.set()
        await asyncio.Event().wait()

    async with calling(app) as http:
        request = asyncio.create_task(http.post("/pay", headers=keyed("k1")))
        await entered.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    assert world.effects() == []
    assert "suspected" not in world.safe.counters
    await world.safe.async_store.aclose()


async def test_what_fails_after_the_commit_does_not_touch_it(place: tuple[str, World]) -> None:
    """A background task runs after the answer was sent, and may have conflicts of its own."""
    store, world = place
    app = FastAPI()
    install(app, safe=world.safe)
    tx = async_sessionmaker(sqlalchemy_engine(world, DRIVERS[store][1]))
    protect = idempotent(who, strength="transaction", tx=tx)

    def later() -> None:
        raise Conflict

    @app.post("/pay", status_code=201)
    async def pay(tasks: BackgroundTasks, session: AsyncSession = Depends(protect)) -> bool:  # noqa: B008
        session.add(Effect(value="a"))
        tasks.add_task(later)
        return True

    async with calling(app) as http:
        first, again = [await http.post("/pay", headers=keyed("k1")) for _ in range(2)]
    assert first.status_code == 201
    assert is_replay(first, again)
    assert world.effects() == ["a"]
    await world.safe.async_store.aclose()


# What is set up wrongly ---------------------------------------------------------------------------


@pytest.mark.store("sqlite")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"policy": Policy(mode="optional"), "tx": "x.db"}, "mode='optional'"),
        ({"policy": Policy(mode="observe"), "tx": "x.db"}, "mode='observe'"),
        ({}, "there is no tx= to open one from"),
        ({"tx": 7}, "tx=7 is a builtins.int"),
    ],
)
async def test_a_route_that_cannot_have_a_transaction_says_why(
    options: dict[str, Any], told: str, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    from retrysafe import RetrySafe

    safe, app = RetrySafe(sqlite_url), FastAPI()
    install(app, safe=safe)

    @app.post("/pay", dependencies=[Depends(idempotent(who, strength="transaction", **options))])
    async def pay() -> None: ...

    async with calling(app) as http:
        refused = await http.post("/pay", headers=keyed("k1"))
    assert is_problem(refused, 500, "misconfigured")
    assert told in caplog.text
    safe.close()


async def test_an_async_driver_is_not_for_a_plain_handler(place: tuple[str, World], caplog: Any) -> None:
    store, world = place
    app = FastAPI()
    install(app, safe=world.safe)
    tx = async_sessionmaker(sqlalchemy_engine(world, DRIVERS[store][1]))

    @app.post("/pay", dependencies=[Depends(idempotent(who, strength="transaction", tx=tx))])
    def pay() -> None: ...

    async with calling(app) as http:
        assert is_problem(await http.post("/pay", headers=keyed("k1")), 500, "misconfigured")
    assert "pay is a plain function; write `async def`" in caplog.text
    assert issubclass(SyncAsyncMismatch, UsageError)


def test_tx_belongs_to_the_transaction_strength() -> None:
    with pytest.raises(UsageError, match=r"tx='shop\.db' is for strength='transaction'"):
        idempotent(who, tx="shop.db")


async def test_a_safe_method_beside_it_is_left_alone(place: tuple[str, World]) -> None:
    app = FastAPI()
    install(app, safe=place[1].safe)
    protect = idempotent(who, strength="transaction", tx=place[1].path)

    @app.get("/pay")
    async def look(tx: Any = Depends(protect)) -> bool:  # noqa: B008
        return tx is None

    async with calling(app) as http:
        assert (await http.get("/pay")).json() is True
    await place[1].safe.async_store.aclose()
