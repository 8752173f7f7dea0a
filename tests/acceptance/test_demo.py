"""`retrysafe demo`, as a process, over HTTP: one charge per key, identical replays, a clean stop, a kill survived."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers.ports import free_port
from tests.waiting import until

PAYMENT = {"amount": 10000, "currency": "usd"}
PATIENCE = 120.0
"""Seconds for one answer, and for the demo to come up, on a machine that does ten other things."""


@contextmanager
def demo(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    command = [sys.executable, "-m", "retrysafe.cli.main", "demo", "--port", str(port), "--data", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: answers(url), PATIENCE, "the demo to answer")
        yield url, process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def answers(url: str) -> bool:
    try:
        return httpx.get(url + "/provider/charges", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


def pay(url: str, key: str | None, payment: Any = PAYMENT, token: str = "") -> httpx.Response:
    headers = {"idempotency-key": key} if key else {}
    if token:
        headers["authorization"] = f"Bearer {token}"
    return httpx.post(url + "/payments", json=payment, headers=headers, timeout=PATIENCE)


def charges(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(url + "/provider/charges", timeout=PATIENCE).json()
    return found


@pytest.mark.store("sqlite")
def test_paying_twice_with_one_key_charges_once_and_answers_the_same_bytes(tmp_path: Path) -> None:
    with demo(tmp_path) as (url, process):
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

        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 0, "Ctrl-C stops it cleanly"

    with demo(tmp_path) as (url, _):
        again = pay(url, "k1")
        assert again.content == first.content, "the data stays"
        assert len(charges(url)) == 4


@pytest.mark.store("sqlite")
def test_bad_input_says_what_to_do(tmp_path: Path) -> None:
    with demo(tmp_path) as (url, _):
        wrong = [{"amount": "100", "currency": "usd"}, {"amount": 0, "currency": "usd"}, {"amount": 5, "currency": "x"}]
        for payment in [*wrong, [], 7]:
            refused = pay(url, "bad", payment)
            assert refused.status_code == 422, payment
            assert "give" in json.dumps(refused.json())
        torn = httpx.post(url + "/payments", content=b"{", headers={"idempotency-key": "j"}, timeout=PATIENCE)
        assert torn.status_code == 400
        assert pay(url, "two words").status_code == 400
        assert charges(url) == []


@pytest.mark.store("sqlite")
def test_a_killed_server_charges_once_when_the_client_retries(tmp_path: Path) -> None:
    with demo(tmp_path) as (url, process):
        process.kill()
        process.wait()
    with demo(tmp_path) as (url, _):
        first, second = pay(url, "after"), pay(url, "after")
        assert first.content == second.content
        assert len(charges(url)) == 1
