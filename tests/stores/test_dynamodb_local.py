"""Amazon's own DynamoDB Local: the claim's contract, a race and the transaction strength; the rest is in the proof.

It takes ten milliseconds for a request, so it is started only when one of these tests is, and by one process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.stores.registry import open_async_store
from retrysafe.testing import Do, LoopThread
from retrysafe.testing.builders import claim, complete, record_of
from retrysafe.testing.contract.claim import *  # noqa: F403
from retrysafe.transactions.on_dynamodb import Writes, WritesRefused, transact
from tests.kept import DynamoTable
from tests.opening import open_migrated, unique, with_option
from tests.servers.dynamodb import DynamoLocalServer, client_of, endpoint_of
from tests.servers.lazy import note, started

pytestmark = [pytest.mark.store("dynamodb-local"), pytest.mark.xdist_group("dynamodb-local")]

LABEL = "DynamoDB Local 1.25.1 (npm package)"


@pytest.fixture(scope="module")
def local_url() -> Iterator[str]:
    server = started(DynamoLocalServer())
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def table(local_url: str) -> Iterator[DynamoTable]:
    table = DynamoTable(local_url)
    yield table
    table.close()


@pytest.fixture(params=["sync", pytest.param("async", marks=pytest.mark.campaign)])
def do(request: pytest.FixtureRequest, table: DynamoTable) -> Do:
    note(request, "dynamodb-local", LABEL)
    return table.empty(request.param)


@pytest.fixture
def url(request: pytest.FixtureRequest, local_url: str) -> str:
    note(request, "dynamodb-local", LABEL)
    return with_option(local_url, "table", unique("t_"))


def test_it_listens_on_the_loopback_address_only(url: str) -> None:
    """It cannot be told to; the shim under tests/servers makes it so."""
    port = urlsplit(endpoint_of(url)).port
    assert port is not None
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    here = {fields[1] for fields in lines if fields[1].endswith(f":{port:04X}") and fields[3] == "0A"}
    assert here == {f"0100007F:{port:04X}"}


def test_one_winner_for_each_attempt(url: str) -> None:
    open_migrated(url, "sync").close()
    loop, store = LoopThread(), open_async_store(url)

    async def race(key: int, now: float) -> list[int]:
        ops = [claim(f"k{key}", lease=30, on_lapse="rerun", now=now) for _ in range(40)]
        replies = await asyncio.gather(*(store.execute(op) for op in ops))
        return [record_of(reply).attempt for reply in replies if reply.granted]

    try:
        for key in range(3):
            assert loop.run(race(key, now=0)) == [1]
            assert loop.run(race(key, now=31)) == [2]
    finally:
        loop.run(store.aclose())
        loop.close()


def test_what_was_answered_is_replayed_in_the_other_colour(url: str) -> None:
    sync, other = open_migrated(url, "sync"), open_migrated(url, "async")
    held = sync(claim("k", now=None))
    assert other(complete(held, b"\x00\xff", now=None)) is True
    assert record_of(sync(claim("k", now=None))).answer == record_of(other(claim("k", now=None))).answer
    sync.close()
    other.close()


def test_a_transaction_is_carried_out_once(url: str) -> None:
    client, orders = client_of(url), unique("orders_")
    client.create_table(
        TableName=orders,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    safe = RetrySafe(url)
    safe.migrate()
    put = {"TableName": orders, "Item": {"id": {"S": "o1"}}, "ConditionExpression": "attribute_not_exists(id)"}
    writes = Writes([{"Put": put}], Answer(201))
    told = [transact(safe, writes, key="k", scope="s").replayed for _ in range(2)]
    assert told == [False, True]
    with pytest.raises(WritesRefused, match="ConditionalCheckFailed"):
        transact(safe, writes, key="other", scope="s")
    assert client.scan(TableName=orders)["Count"] == 1
    safe.close()
    client.close()
