"""start="worker" over HTTP: 202 with a status URL, which says in progress until the worker is done, then gives the
stored answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from retrysafe import Policy
from retrysafe.core.states import State
from retrysafe.worker import Worker
from tests.operations.world import Ordering, World, make_world
from tests.web.frameworks.calling import is_problem
from tests.web.operations.apps import ASYNC, SYNC, Call, account, calling

WORKER = Policy(failures="release", start="worker")
BOOK = {"item": "book", "cents": 900}
KEY = {"Idempotency-Key": "k"}

PLACES = [
    pytest.param((store, name, colour), id=f"{store}-{name}", marks=pytest.mark.store(store))
    for store in ("sqlite", "postgres")
    for names, colour in ((ASYNC, "async"), (SYNC, "sync"))
    for name in names
]

Open = Callable[..., tuple[Ordering, Call]]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[World, str]]:
    store, name, colour = request.param
    w = make_world(request, tmp_path, store, colour)
    yield w, name
    w.close()


@pytest.fixture
def shop(place: tuple[World, str]) -> Open:
    w, name = place

    def opened(policy: Policy = WORKER, strength: str = "operation", **options: Any) -> tuple[Ordering, Call]:
        ordering = Ordering(w, policy=policy)
        return ordering, calling(w, {**ASYNC, **SYNC}[name](w, ordering.op, strength, **options))

    return opened


def is_in_progress(response: httpx.Response) -> str:
    """Check a 202, and return its status URL."""
    told = response.json()
    assert (response.status_code, told["state"], told["retry_same_key"]) == (202, "in_progress", True)
    assert int(response.headers["retry-after"]) >= 1
    assert response.headers["cache-control"] == "no-store"
    assert "idempotent-replayed" not in response.headers
    assert told.get("status_url") == response.headers.get("location")
    return str(told.get("status_url", ""))


def test_from_202_to_the_stored_answer(shop: Open) -> None:
    ordering, call = shop(status_scope=account)
    address = is_in_progress(call("POST", "/orders", json=BOOK, headers=KEY))
    assert address
    assert is_in_progress(call("POST", "/orders", json=BOOK, headers=KEY)) == address
    assert is_in_progress(call("GET", address)) == address
    assert ordering.calls == [], "nobody has run it yet"

    assert Worker(ordering.w.safe).run_once().healthy
    done = call("GET", address)
    replayed = call("POST", "/orders", json=BOOK, headers=KEY)
    assert (done.status_code, done.json()) == (201, {"order": 1, "charge": "ch_0"})
    assert (replayed.status_code, replayed.content) == (done.status_code, done.content)
    assert replayed.headers["idempotent-replayed"] == done.headers["idempotent-replayed"] == "true"
    assert (ordering.w.items(), len(ordering.w.sent)) == (["book"], 1)


def test_the_address_is_its_owners_only(shop: Open) -> None:
    _, call = shop(status_scope=account)
    address = is_in_progress(call("POST", "/orders", json=BOOK, headers=KEY))
    assert is_problem(call("GET", address, headers={"Authorization": "mallory"}), 404, "status-not-found")


def test_another_order_under_the_key_is_a_mismatch_while_it_waits(shop: Open) -> None:
    _, call = shop(status_scope=account)
    is_in_progress(call("POST", "/orders", json=BOOK, headers=KEY))
    assert is_problem(call("POST", "/orders", json={"item": "lamp", "cents": 1}, headers=KEY), 422, "mismatch")


def test_one_that_stopped_half_way_is_still_in_progress(shop: Open) -> None:
    """The worker has failed and will try again: the operation is not finished, and the client need not retry."""
    ordering, call = shop(status_scope=account)
    ordering.fail["charge"] = [ConnectionError("down")] * 3
    address = is_in_progress(call("POST", "/orders", json=BOOK, headers=KEY))
    Worker(ordering.w.safe).run_once()
    assert (ordering.w.state(), ordering.calls.count("charge")) == (State.RELEASED, 3)
    assert is_in_progress(call("GET", address)) == address


def test_one_that_is_given_up_is_told_as_unknown(shop: Open) -> None:
    ordering, call = shop(status_scope=account)
    ordering.op.max_attempts = 1
    ordering.fail["charge"] = [ConnectionError("down")] * 3
    address = is_in_progress(call("POST", "/orders", json=BOOK, headers=KEY))
    Worker(ordering.w.safe).run_once()
    assert is_problem(call("GET", address), 500, "outcome-unknown")


def test_where_no_address_is_served_none_is_given(shop: Open) -> None:
    """Without status_scope no status URL is served; the same key still gets the answer."""
    ordering, call = shop()
    assert is_in_progress(call("POST", "/orders", json=BOOK, headers=KEY)) == ""
    Worker(ordering.w.safe).run_once()
    assert call("POST", "/orders", json=BOOK, headers=KEY).json() == {"order": 1, "charge": "ch_0"}


def test_an_operation_is_compared_by_its_request(shop: Open) -> None:
    """The key of a route carries the request's fingerprint, so the same bytes are the same request."""
    ordering, call = shop()
    seen: list[Any] = []
    prepare = ordering.op.prepare

    def watched(args: Any, kwargs: Any, key: Any) -> Any:
        seen.append(key)
        return prepare(args, kwargs, key)

    ordering.op.prepare = watched  # type: ignore[method-assign]
    call("POST", "/orders", json=BOOK, headers=KEY)
    assert [key.request is not None for key in seen] == [True]
