"""Stripe's own SDK on our transport, against the double of Stripe that the recipes use, and a scripted server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import stripe

from retrysafe.client import Budget, Journal, Retries, operation
from retrysafe.client.stripe import RetryHTTPClient
from tests.client.ambient import Virtual
from tests.client.scripted import Drop, Reply, Script
from tests.recipes.test_recipes import StripeDouble

PAYMENT: Any = {"amount": 500, "currency": "usd"}


@pytest.fixture
def double() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), StripeDouble)
    server.keys, server.made, server.fail, server.daemon_threads = [], {}, 0, True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def sdk(port: int, http: RetryHTTPClient) -> stripe.StripeClient:
    # The SDK's own retries are switched on, and must have no effect.
    address: Any = {"api": f"http://127.0.0.1:{port}"}
    return stripe.StripeClient("sk_test_x", base_addresses=address, http_client=http, max_network_retries=5)


def test_a_payment_that_was_made_and_answered_with_500(double: Any, virtual: Virtual) -> None:
    http = RetryHTTPClient(ambient=virtual.ambient())
    client = sdk(double.server_port, http)
    double.fail = 1
    made = client.v1.payment_intents.create(PAYMENT)
    assert (made.id, made.amount) == ("pi_1", 500)
    assert (len(double.keys), len(set(double.keys)), len(double.made)) == (2, 1, 1)
    http.close()


def test_an_operation_survives_a_restart(double: Any, virtual: Virtual, tmp_path: Path) -> None:
    ids = []
    for _ in range(2):  # the program is started twice
        http = RetryHTTPClient(ambient=virtual.ambient(), journal=tmp_path / "stripe.db")
        with operation("order-7"):
            ids.append(sdk(double.server_port, http).v1.payment_intents.create(PAYMENT).id)
        http.close()
    assert ids == ["pi_1", "pi_1"]
    assert len(set(double.keys)) == len(double.made) == 1
    with Journal(tmp_path / "stripe.db") as journal:
        assert [(one.sends, one.state) for one in journal.entries("order-7")] == [(2, "answered")]


def test_a_key_of_the_callers_stays(double: Any, virtual: Virtual) -> None:
    http = RetryHTTPClient(ambient=virtual.ambient())
    with operation("order-7"):
        sdk(double.server_port, http).v1.payment_intents.create(PAYMENT, {"idempotency_key": "order-7-charge"})
    assert double.keys == ["order-7-charge"]
    http.close()


def test_stripes_errors_are_stripes_errors(double: Any, virtual: Virtual) -> None:
    http = RetryHTTPClient(ambient=virtual.ambient())
    client = sdk(double.server_port, http)
    with pytest.raises(stripe.CardError, match="declined"):
        client.v1.payment_intents.create({"amount": 666, "currency": "usd"})
    client.v1.payment_intents.create(PAYMENT, {"idempotency_key": "k"})
    with pytest.raises(stripe.IdempotencyError):
        client.v1.payment_intents.create({"amount": 501, "currency": "usd"}, {"idempotency_key": "k"})
    assert len(double.keys) == 3, "neither was tried again"
    http.close()


def test_the_sdks_own_retries_are_off(server: Script, virtual: Virtual) -> None:
    http = RetryHTTPClient(ambient=virtual.ambient(), retries=Retries(attempts=2), budget=Budget(99))
    client = sdk(server.port, http)
    server.then(*[Reply(503)] * 9)
    with pytest.raises(stripe.APIError):
        client.v1.payment_intents.create(PAYMENT)
    assert len(server.got) == 2
    server.todo[:] = [Drop("after")] * 9
    with pytest.raises(stripe.APIConnectionError, match="idempotency key") as caught:
        client.v1.payment_intents.create(PAYMENT)
    assert len(server.got) == 4
    assert caught.value.should_retry is False
    assert str(server.keys[-1]) in str(caught.value)
    http.close()


def test_stripe_says_whether_to_retry(server: Script, virtual: Virtual) -> None:
    http = RetryHTTPClient(ambient=virtual.ambient())
    server.then(Reply(500, {"Stripe-Should-Retry": "false"}, b'{"error": {"type": "api_error", "message": "no"}}'))
    with pytest.raises(stripe.APIError):
        sdk(server.port, http).v1.payment_intents.create(PAYMENT)
    assert len(server.got) == 1
    http.close()


async def test_async(double: Any, virtual: Virtual) -> None:
    http = RetryHTTPClient(ambient=virtual.ambient())
    double.fail = 1
    made = await sdk(double.server_port, http).v1.payment_intents.create_async(PAYMENT)
    assert made.id == "pi_1"
    assert (len(double.keys), len(double.made)) == (2, 1)
    await http.close_async()
    http.close()
