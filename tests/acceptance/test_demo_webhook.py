"""The demo's `POST /webhooks/provider`: the provider really sends it, forged ones do nothing, one event ships once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from retrysafe import webhooks
from retrysafe.core.problem_names import problem_name
from tests.acceptance.test_demo import pay
from tests.demo_process import PATIENCE, running_demo
from tests.opening import store_url
from tests.waiting import until

PAYMENT = {"amount": 10000, "currency": "usd", "order": "o1"}


def read(url: str, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(url + path, timeout=PATIENCE).json()
    return found


def wait_for_delivery(url: str, tries: int = 1) -> dict[str, Any]:
    """The only event of the provider, once it has been delivered for the n-th time."""

    def is_delivered() -> bool:
        return [bool(one["delivered"]) and one["tries"] >= tries for one in read(url, "/provider/events")] == [True]

    until(is_delivered, PATIENCE, "the webhook to arrive")
    (event,) = read(url, "/provider/events")
    return event


@pytest.mark.parametrize(
    "store",
    [pytest.param(store, marks=pytest.mark.store(store)) for store in ("sqlite", "postgres", "redis")],
)
def test_an_event_that_is_delivered_again_ships_one_parcel(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with running_demo(tmp_path / "data", "--store", store_url(request, tmp_path, store)) as (url, _):
        assert pay(url, "k1", PAYMENT).status_code == 201
        event = wait_for_delivery(url)
        assert read(url, "/provider/parcels") == [{"order": "o1", "requests": 1}]

        for again in (1, 2):
            assert httpx.post(f"{url}/provider/events/resend", timeout=PATIENCE).json() == {"resent": 1}
            wait_for_delivery(url, event["tries"] + again)
        assert read(url, "/provider/parcels") == [{"order": "o1", "requests": 1}], "the handler ran once"


@pytest.mark.store("sqlite")
def test_a_charge_in_whose_middle_the_server_was_killed_ships_one_parcel(tmp_path: Path) -> None:
    with running_demo(tmp_path / "data") as (url, _):
        assert pay(url, "k1", PAYMENT, **{"x-demo-fault": "kill"}).status_code == 502
        until(lambda: pay(url, "k1", PAYMENT).status_code == 201, PATIENCE, "the payment")
        wait_for_delivery(url)
        assert [parcel["order"] for parcel in read(url, "/provider/parcels")] == ["o1"]


@pytest.mark.store("sqlite")
def test_a_forged_webhook_is_refused_and_ships_nothing(tmp_path: Path) -> None:
    body = b'{"type": "charge.succeeded", "id": "evt_1", "data": {"id": "ch_1", "order": "o1"}}'
    forged = webhooks.StandardWebhooks(b"not the provider's secret").sign(body, id="evt_1", now=time.time())
    with running_demo(tmp_path / "data") as (url, _):
        for headers in ({}, forged):
            answer = httpx.post(f"{url}/webhooks/provider", content=body, headers=headers, timeout=PATIENCE)
            assert answer.status_code == 400
            assert problem_name(answer.json()["type"]) == "verification"
        assert httpx.post(f"{url}/webhooks/provider", content=b"[1", timeout=PATIENCE).status_code == 400
        assert read(url, "/provider/parcels") == []
