"""One effect per logical operation, while a proxy loses requests and answers and the shop falls over.

`RETRYSAFE_CLIENT_OPERATIONS=10000` makes it long; every adapter then makes that many.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import requests

from retrysafe.client import Budget, Clock, Journal, Retries
from retrysafe.client.httpx import AsyncRetryTransport, RetryTransport
from retrysafe.client.requests import RetryAdapter
from tests.client.chaos import FATES, Street, street

OPERATIONS = int(os.environ.get("RETRYSAFE_CLIENT_OPERATIONS", "250"))
AT_ONCE = 16
TIMEOUT = 1.0
TINY = 0.005

Answers = dict[str, dict[str, Any]]


async def asleep(seconds: float) -> None:
    await asyncio.sleep(min(seconds, TINY))


# Waits are cut short: nothing here depends on their length.
HASTY = Clock(sleep=lambda seconds: time.sleep(min(seconds, TINY)), asleep=asleep)
STUBBORN = Retries(attempts=100, deadline=3600)


def options(folder: Path) -> dict[str, Any]:
    return {"retries": STUBBORN, "budget": Budget(1e9), "ambient": HASTY, "journal": Journal(folder / "journal.db")}


def orders() -> list[str]:
    return [f"order-{number}" for number in range(OPERATIONS)]


def in_threads(order: Callable[[str], dict[str, Any]]) -> Answers:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(orders(), pool.map(order, orders()), strict=True))


def by_httpx(place: Street, settings: dict[str, Any]) -> Answers:
    transport = RetryTransport(**settings)
    with httpx.Client(transport=transport, base_url=place.url, timeout=TIMEOUT) as client:

        def one(order: str) -> dict[str, Any]:
            response = client.post("/orders", json={"order": order})
            assert response.status_code == 201, response.text
            return dict(response.json())

        return in_threads(one)


def by_requests(place: Street, settings: dict[str, Any]) -> Answers:
    mine = threading.local()
    adapter = RetryAdapter(**settings, pool_maxsize=AT_ONCE)

    def one(order: str) -> dict[str, Any]:
        if not hasattr(mine, "session"):
            mine.session = requests.Session()
            mine.session.mount("http://", adapter)
        response = mine.session.post(f"{place.url}/orders", json={"order": order}, timeout=TIMEOUT)
        assert response.status_code == 201, response.text
        return dict(response.json())

    try:
        return in_threads(one)
    finally:
        adapter.close()


def by_async(place: Street, settings: dict[str, Any]) -> Answers:
    async def all_of_them() -> Answers:
        room = asyncio.Semaphore(AT_ONCE)
        transport = AsyncRetryTransport(**settings)
        async with httpx.AsyncClient(transport=transport, base_url=place.url, timeout=TIMEOUT) as client:

            async def one(order: str) -> dict[str, Any]:
                async with room:
                    response = await client.post("/orders", json={"order": order})
                assert response.status_code == 201, response.text
                return dict(response.json())

            return dict(zip(orders(), await asyncio.gather(*map(one, orders())), strict=True))

    return asyncio.run(all_of_them())


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("by", [by_httpx, by_async, by_requests])
def test_one_effect_per_operation(by: Callable[[Street, dict[str, Any]], Answers], tmp_path: Path) -> None:
    settings = options(tmp_path)
    with street(tmp_path) as place:
        began = time.monotonic()
        answers = by(place, settings)
        took = time.monotonic() - began
    shop, proxy = place.shop, place.proxy
    print(f"\n{by.__name__}: {OPERATIONS} operations in {took:.1f} s; {dict(proxy.fates)}; {dict(proxy.statuses)}")
    assert set(shop.made) == set(orders())
    assert set(shop.made.values()) == {1}, "done more than once"
    assert answers == {order: {"order": order, "number": shop.number[order]} for order in orders()}
    assert all(proxy.fates[fate] for fate in FATES), "there was trouble of every kind"
    assert min(proxy.statuses[201], proxy.statuses[409], proxy.statuses[500]) > 0
    journal: Journal = settings["journal"]
    assert journal.unfinished() == []
    journal.close()


def test_a_client_with_a_new_key_for_each_attempt_does_it_twice(tmp_path: Path) -> None:
    """The control: with the same faults, a client that makes a new key for each attempt has double effects."""
    with street(tmp_path) as place, httpx.Client(base_url=place.url, timeout=TIMEOUT) as client:
        for number in range(40):
            status = 0
            while status != 201:
                body = json.dumps({"order": f"order-{number}"}).encode()
                try:
                    response = client.post("/orders", content=body, headers={"Idempotency-Key": uuid4().hex})
                    status = response.status_code
                except httpx.TransportError:
                    continue
    assert sum(place.shop.made.values()) > 40
