"""Django's own transactions: `transaction.atomic()` around the view, and the answer in the same commit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.web.frameworks import django_project as project  # sets Django up, so it comes first

# isort: split
from django.core.management import call_command
from django.db import connection, connections
from django.test import AsyncClient, Client, override_settings

from retrysafe.core.keys import Key
from retrysafe.core.ops import Lookup
from retrysafe.errors import UsageError
from retrysafe.web.django import conf, idempotent
from retrysafe.worker import Worker
from tests.web.transactions import django_urls as urls
from tests.web.transactions.crashing import Conflict

fresh = project.fresh


@pytest.fixture(scope="module", autouse=True)
def _tables() -> Iterator[None]:
    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS effects (value text NOT NULL PRIMARY KEY)")
    yield
    conf.safe().close()
    connections.close_all()


@pytest.fixture(autouse=True)
def _urls() -> Iterator[None]:
    urls.THEN.clear()
    with override_settings(ROOT_URLCONF="tests.web.transactions.django_urls"):
        yield


@pytest.fixture(params=[False, True], ids=["WSGI", "ASGI"])
def call(request: pytest.FixtureRequest) -> Any:
    client: Any = (AsyncClient if request.param else Client)(raise_request_exception=False)

    def sent(path: str, key: str, **data: Any) -> Any:
        headers = {"Idempotency-Key": key, "X-Value": key}
        made = client.post(path, data=json.dumps(data), content_type="application/json", headers=headers)
        return asyncio.run(awaited(made)) if request.param else whole(made)

    async def awaited(made: Any) -> Any:
        response = await made
        if response.streaming and response.is_async:
            response.whole = b"".join([part async for part in response])
        else:
            whole(response)
        await conf.safe().async_store.aclose()
        return response

    return sent


def whole(response: Any) -> Any:
    response.whole = b"".join(response) if response.streaming else response.content
    return response


def written(key: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM effects WHERE value = %s", [key])
        return bool(cursor.fetchone()[0])


def stored(key: str) -> Any:
    record = conf.safe().execute(Lookup(Key(key, "alice").id("default"))).record
    return None if record is None else record.answer


def raised(error: Exception) -> Any:
    def do() -> None:
        raise error

    return do


@pytest.mark.store("sqlite")
@pytest.mark.parametrize("path", ["/pay", "/drf"])
def test_the_answer_commits_with_the_view(call: Any, path: str) -> None:
    key = fresh()
    first, again = call(path, key), call(path, key)
    assert (first.status_code, again.status_code, again.whole) == (201, 201, first.whole)
    assert "Idempotent-Replayed" not in first
    assert again["Idempotent-Replayed"] == "true"
    assert (written(key), urls.CALLS.count(key)) == (True, 1)
    assert urls.BLOCKS[-1] == (True, 0), "in one transaction, and no savepoint of it"


@pytest.mark.store("sqlite")
def test_atomic_requests_do_not_nest(call: Any) -> None:
    config = connections.settings["default"]
    config["ATOMIC_REQUESTS"] = True
    try:
        key = fresh()
        assert call("/pay", key).status_code == 201
        assert urls.BLOCKS[-1] == (True, 0)
        assert written(key)
    finally:
        config["ATOMIC_REQUESTS"] = False


@pytest.mark.store("sqlite")
def test_a_view_that_raises_is_rolled_back_and_answered_once(call: Any) -> None:
    key = fresh()
    urls.THEN.append(raised(ValueError("boom")))
    first, again = call("/pay", key), call("/pay", key)
    assert (first.status_code, again.status_code, again.whole) == (500, 500, first.whole)
    assert (written(key), urls.CALLS.count(key)) == (False, 1)
    assert stored(key).status == 500


@pytest.mark.store("sqlite")
def test_an_exception_that_drf_answers_is_rolled_back_too(call: Any) -> None:
    key = fresh()
    first, again = call("/drf", key, wrong=1), call("/drf", key, wrong=1)
    assert (first.status_code, again.status_code, again.whole) == (400, 400, first.whole)
    assert (written(key), stored(key).status) == (False, 400)


@pytest.mark.store("sqlite")
def test_a_failure_that_is_not_final_may_run_again(call: Any) -> None:
    key = fresh()
    urls.THEN.append(raised(ValueError("boom")))
    assert call("/small", key).status_code == 500
    assert (written(key), stored(key)) == (False, None)
    assert call("/small", key).status_code == 200
    assert written(key)


@pytest.mark.store("sqlite")
def test_an_answer_that_is_too_large_leaves_its_tombstone(call: Any) -> None:
    key = fresh()
    first, again = call("/small", key), call("/small", key)
    assert (first.status_code, first.whole, again.status_code) == (200, b"x" * 51, 410)
    assert (written(key), stored(key).gone) == (True, "too_large")


@pytest.mark.store("sqlite")
def test_a_streaming_answer_is_kept_like_any_other(call: Any) -> None:
    key = fresh()
    first, again = call("/stream", key), call("/stream", key)
    assert (first.whole, again.whole, again["Idempotent-Replayed"]) == (b"ab", b"ab", "true")
    assert (written(key), urls.CALLS.count(key)) == (True, 1)


@pytest.mark.store("sqlite")
@pytest.mark.parametrize("path", ["/pay", "/drf"])
def test_a_view_whose_work_the_database_undid_runs_again(call: Any, path: str) -> None:
    key = fresh()
    urls.THEN.append(raised(Conflict()))
    told = call(path, key, some="data")
    assert told.status_code == 201
    assert (written(key), urls.CALLS.count(key)) == (True, 2)
    if path == "/pay":
        assert json.loads(told.whole) == {"body": '{"some": "data"}'}, "its body was there the second time too"


@pytest.mark.store("sqlite")
def test_an_operation_for_the_worker_is_accepted_and_then_replayed(call: Any) -> None:
    key = fresh()
    accepted, again = call("/submitted", key), call("/submitted", key)
    assert (accepted.status_code, again.status_code) == (202, 202)
    assert json.loads(accepted.whole) == {"state": "in_progress", "retry_same_key": True}
    assert int(accepted["Retry-After"]) >= 1
    assert Worker(conf.safe()).run_once().healthy
    done = call("/submitted", key)
    assert (done.status_code, json.loads(done.whole)) == (201, {"charge": f"ch_{key}"})
    assert done["Idempotent-Replayed"] == "true"
    assert urls.CALLS.count(key) == 1


def test_an_async_view_is_refused() -> None:
    with pytest.raises(UsageError, match="Django's transactions are not"):

        @idempotent(strength="transaction")
        async def pay(request: Any) -> None: ...
