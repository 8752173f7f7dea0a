"""DBOS, on SQLite and PostgreSQL, killed with SIGKILL between an effect and its record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import sqlalchemy

from tests.recipes.durable_world import ProviderDouble, WebProgram, provider_double
from tests.servers.postgres import temporary_database

STORES = [pytest.param(store, marks=pytest.mark.store(store)) for store in ("sqlite", "postgres")]
SQLITE = pytest.mark.parametrize("store", STORES[:1], indirect=True)
"""For what does not depend on where DBOS keeps its tables."""
Start = Callable[..., WebProgram]
LEASE = 2.0
"""Of a process that is to die: so long the next one has to wait for it."""


@pytest.fixture
def provider() -> Iterator[ProviderDouble]:
    with provider_double() as server:
        yield server


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place of its own: DBOS makes a schema in it, and recovers whatever it finds there."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'app.db'}"
        return
    with temporary_database(request.getfixturevalue("postgres_url")) as url:
        yield url


@pytest.fixture
def start(store: str, provider: ProviderDouble, tmp_path: Path) -> Iterator[Start]:
    begun: list[WebProgram] = []

    def begin(dies: str = "never", ready: bool = True, lease: float = LEASE) -> WebProgram:
        begun.append(WebProgram(tmp_path, "tests.recipes.run_dbos", store, provider.url, dies, str(lease)))
        return begun[-1].ready() if ready else begun[-1]

    yield begin
    for program in begun:
        program.stop()


def entries(store: str, account: str) -> int:
    engine = sqlalchemy.create_engine(store.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.connect() as db:
            counting = sqlalchemy.text("SELECT count(*) FROM ledger WHERE account = :account")
            return int(db.execute(counting, {"account": account}).scalar_one())
    finally:
        engine.dispose()


def test_one_key_starts_one_workflow(start: Start, store: str, provider: ProviderDouble) -> None:
    web = start(lease=600)  # nobody dies, and whoever is held up for a while keeps what it has
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _: web.post("/orders", "a", 5, idempotency_key="k"), range(4)))
    assert [answer.status_code for answer in told] == [201] * 4, told[0].text
    assert len({answer.content for answer in told}) == 1
    assert sorted(answer.headers.get("idempotent-replayed", "no") for answer in told) == ["no", "true", "true", "true"]
    assert (provider.charged("a"), provider.labelled("a"), entries(store, "a")) == (1, 1, 1)

    assert web.post("/orders", "a", 6, idempotency_key="k").status_code == 422, "the key belongs to another order"
    assert web.post("/orders", "b", 5, idempotency_key="k").status_code == 201
    assert (provider.charged("b"), provider.charged("a")) == (1, 1), "another tenant's key is another workflow"


def test_killed_between_an_effect_and_its_record_twice(start: Start, store: str, provider: ProviderDouble) -> None:
    first = start()
    provider.deadly["/charges"] = first.kill
    with pytest.raises(httpx.TransportError):
        first.post("/orders", "a", 5, idempotency_key="k")
    first.was_killed()
    start("enter", ready=False).was_killed()  # it recovers the workflow by itself, and dies after the ledger's commit

    third = start()
    answer = third.post("/orders", "a", 5, idempotency_key="k")
    assert answer.status_code == 201, answer.text
    assert answer.json() == {"charge": "ch_0", "entered": 5, "label": "label_1"}
    assert third.post("/orders", "a", 5, idempotency_key="k").content == answer.content
    assert (provider.charged("a"), provider.labelled("a"), entries(store, "a")) == (1, 1, 1)
    assert provider.requests["/charges"] == 2, "DBOS did run the cut-off step again, and not a third time"


@SQLITE
def test_a_printer_without_keys_prints_once_and_a_person_is_asked(start: Start, provider: ProviderDouble) -> None:
    first = start()
    provider.deadly["/labels"] = first.kill
    with pytest.raises(httpx.TransportError):
        first.post("/orders", "a", 5, idempotency_key="k")
    first.was_killed()

    second = start()
    for _ in range(2):
        answer = second.post("/orders", "a", 5, idempotency_key="k")
        assert answer.status_code == 500
        assert answer.json()["detail"]["state"] == "a person has to look"
    assert (provider.charged("a"), provider.labelled("a")) == (1, 1), "never a second label"


@SQLITE
def test_what_dbos_does_by_itself(start: Start, provider: ProviderDouble) -> None:
    """One workflow for an id, and steps at least once. The id is anybody's, and stands for whatever came first."""
    first = start()
    provider.deadly["/labels"] = first.kill
    with pytest.raises(httpx.TransportError):
        first.post("/unprotected", "a", 5, dbos_idempotency_key="k")
    first.was_killed()

    second = start()
    answer = second.post("/unprotected", "a", 5, dbos_idempotency_key="k")
    assert answer.json() == {"label": "label_2"}
    assert provider.labelled("a") == 2, "the step was run again, and so was its effect"
    assert second.post("/unprotected", "b", 999, dbos_idempotency_key="k").json() == {"label": "label_2"}, (
        "another tenant with another order is given the first one's answer"
    )
