"""`retrysafe demo`, as a process, over HTTP: one charge per key, the same bytes again, a clean stop, a real kill."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.demo_process import PATIENCE, running_demo
from tests.opening import store_url
from tests.waiting import until

PAYMENT = {"amount": 10000, "currency": "usd"}


def pay(url: str, key: str | None, payment: Any = PAYMENT, token: str = "", **headers: str) -> httpx.Response:
    sent = {**headers, **({"idempotency-key": key} if key else {})}
    if token:
        sent["authorization"] = f"Bearer {token}"
    return httpx.post(url + "/payments", json=payment, headers=sent, timeout=PATIENCE)


def charges(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(url + "/provider/charges", timeout=PATIENCE).json()
    return found


def status(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(url + "/demo/status", timeout=PATIENCE).json()
    return found


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def list_children(pid: int) -> list[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return [child for child, parent in parents.items() if parent == pid]


@pytest.mark.store("sqlite")
def test_paying_twice_with_one_key_charges_once_and_answers_the_same_bytes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_demo(data) as (url, process):
        first, second = pay(url, "k1"), pay(url, '"k1"')
        assert (first.status_code, second.status_code) == (201, 201)
        assert second.content == first.content
        assert "idempotent-replayed" not in first.headers
        assert second.headers["idempotent-replayed"] == "true"
        assert len(charges(url)) == 1
        stored = httpx.get(f"{url}/payments/{first.json()['id']}", timeout=PATIENCE)
        assert stored.json()["charge"] == charges(url)[0]["id"]

        assert pay(url, "k1", {"amount": 1, "currency": "usd"}).status_code == 422
        assert pay(url, "k1", token="another-account").status_code == 201
        assert len(charges(url)) == 2, "another account's key is another key"
        assert {pay(url, None).status_code for _ in range(2)} == {201}
        assert len(charges(url)) == 4, "without a key every request pays"

        until(lambda: len(list_children(process.pid)) == 3, PATIENCE, "the shop, the provider and the spare shop")
        children = list_children(process.pid)
        assert {status(url)[name] for name in ("shop", "provider")} < set(children)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 0, "Ctrl-C stops it cleanly"
        assert not any(map(is_running, children)), "and its processes with it"

    with running_demo(data) as (url, _):
        again = pay(url, "k1")
        assert again.content == first.content, "the data stays"
        assert len(charges(url)) == 4


@pytest.mark.store("sqlite")
def test_bad_input_says_what_is_wrong_and_charges_nothing(tmp_path: Path) -> None:
    with running_demo(tmp_path / "data") as (url, _):
        wrong = [{"amount": "100", "currency": "usd"}, {"amount": 0, "currency": "usd"}, {"amount": 5, "currency": "x"}]
        for payment in [*wrong, [], 7]:
            refused = pay(url, "bad", payment)
            assert refused.status_code == 422, payment
            assert refused.json()["detail"]
        torn = httpx.post(url + "/payments", content=b"{", headers={"idempotency-key": "j"}, timeout=PATIENCE)
        assert torn.status_code == 422
        assert pay(url, "two words").status_code == 400
        assert charges(url) == []


@pytest.mark.parametrize(
    "store",
    [pytest.param(store, marks=pytest.mark.store(store)) for store in ("sqlite", "postgres", "redis")],
)
def test_a_server_killed_in_the_middle_of_a_charge_charges_once(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url_of_store = store_url(request, tmp_path, store)
    with running_demo(tmp_path / "data", "--store", url_of_store) as (url, process):
        before = status(url)["shop"]
        payment = {**PAYMENT, "order": "o1"}
        cut_off = pay(url, "k1", payment, **{"x-demo-fault": "kill"})
        assert cut_off.status_code == 502
        assert len(charges(url)) == 1, "the provider has charged, and the server does not know"
        answers = []
        until(lambda: answers.append(pay(url, "k1", payment)) or answers[-1].status_code == 201, PATIENCE, "a payment")  # type: ignore[func-returns-value]
        assert {answer.status_code for answer in answers[:-1]} <= {409, 502}, "in progress, or still starting"
        assert answers[-1].json()["charge"] == charges(url)[0]["id"]
        assert len(charges(url)) == 1
        after = status(url)["shop"]
        assert after != before
        assert not is_running(before)

        until(lambda: len(list_children(process.pid)) == 3, PATIENCE, "the next spare")
        children = list_children(process.pid)
        process.kill()
        process.wait()
        until(lambda: not any(map(is_running, children)), PATIENCE, "the server and the spare to end with the demo")


def test_a_request_of_another_site_is_refused(tmp_path: Path) -> None:
    with running_demo(tmp_path / "data") as (url, _):
        assert httpx.get(url, headers={"host": "shop.example"}, timeout=PATIENCE).status_code == 400
