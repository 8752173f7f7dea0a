"""The recipes work, and show what they say they show."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from examples.recipes import forwarded_key, one_table, reserve_charge_ship, three_ways, which_key

from retrysafe import Answer, Key, Policy, RetrySafe
from retrysafe.engine.arguments import fingerprint_call
from retrysafe.engine.guard import Task
from retrysafe.errors import AnswerGone, FingerprintMismatch, NotFinished
from retrysafe.worker import Worker

# A payment service ------------------------------------------------------------------------------


class StripeDouble(http.server.BaseHTTPRequestHandler):
    """Answers as Stripe does: the same key gets the first answer again, and a key with another body an error."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        key = self.headers["idempotency-key"]
        server.keys.append(key)
        amount = parse_qs(body)["amount"][0]
        if key in server.made and server.made[key][0] != body:
            return self.answer(400, {"error": {"type": "idempotency_error", "message": "other parameters"}})
        if amount == "666":
            declined = {"type": "card_error", "code": "card_declined", "message": "declined"}
            return self.answer(402, {"error": declined})
        first = key not in server.made
        server.made.setdefault(key, (body, f"pi_{len(server.made) + 1}"))
        if server.fail and first:
            server.fail -= 1
            return self.answer(500, {"error": {"type": "api_error", "message": "it was made, but you are told so"}})
        made = {"id": server.made[key][1], "object": "payment_intent", "amount": int(amount)}
        return self.answer(200, made)

    def answer(self, status: int, told: Any) -> None:
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def stripe_double() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StripeDouble)
    server.keys, server.made, server.fail, server.daemon_threads = [], {}, 0, True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_payment_forwards_a_derived_key_to_stripe(stripe_double: Any, tmp_path: Path) -> None:
    safe, pay = forwarded_key.payments(tmp_path, f"http://127.0.0.1:{stripe_double.server_port}")
    with safe:
        stripe_double.fail = 1  # applied, and answered with 500
        first = forwarded_key.endpoint(pay, "acct-1", "k", 500, "usd")
        assert first == Answer(201, {"id": "pi_1"})
        assert forwarded_key.endpoint(pay, "acct-1", "k", 500, "usd") == first
        assert (len(stripe_double.keys), len(set(stripe_double.keys)), len(stripe_double.made)) == (2, 1, 1)
        forwarded_key.endpoint(pay, "acct-2", "k", 500, "usd")
        assert len(stripe_double.made) == 2, "another tenant's key is another payment"
        assert all(len(key) <= 64 and ":" not in key for key in stripe_double.keys)
        with pytest.raises(FingerprintMismatch):
            forwarded_key.endpoint(pay, "acct-1", "k", 501, "usd")
        declined = forwarded_key.endpoint(pay, "acct-1", "no", 666, "usd")
        assert declined == Answer(402, {"error": "card_declined"})
        assert forwarded_key.endpoint(pay, "acct-1", "no", 666, "usd") == declined


# A saga -----------------------------------------------------------------------------------------


def test_reserve_charge_ship(tmp_path: Path) -> None:
    shop = reserve_charge_ship.Shop(tmp_path)
    with shop.safe:
        assert shop.order("book", 900, key="1").status == 201
        assert shop.left() == 2
        shop.carrier_is_on_strike = True
        assert shop.order("book", 900, key="2").status == 503
        assert (shop.left(), len(shop.charged), len(shop.refunded)) == (2, 2, 1)
        shop.carrier_is_on_strike = False
        assert shop.order("book", 900, key="2").status == 503, "an answer is an answer"
        assert [shop.order("book", 900, key=key).status for key in "345"] == [201, 201, 409]


# One table --------------------------------------------------------------------------------------


def test_one_table() -> None:
    db = one_table.open_book()
    assert one_table.nested_write(db, "a", "k", 5) == one_table.nested_write(db, "a", "k", 5) == 1
    assert one_table.nested_write(db, "b", "k", 5) == 2
    with pytest.raises(one_table.OtherRequest):
        one_table.nested_write(db, "a", "k", 6)
    assert one_table.two_step_lookup(db, "a", "k", 5) == 1
    assert one_table.two_step_lookup(db, "a", "new", 5) == 3
    assert one_table.upsert(db, "a", "k", 99) == 1
    assert db.execute("SELECT cents FROM payments WHERE id = 1").fetchone() == (99,), "the second request won"
    for _ in range(3):
        one_table.act_once(db, "c", "k", 7)
    assert one_table.balance(db, "c") == 7
    db.close()


# Which key --------------------------------------------------------------------------------------


def test_key_by_request_and_key_by_operation() -> None:
    with RetrySafe("memory://") as safe:
        billing = which_key.Billing(safe)
        assert billing.by_request("r1", 7, 500) == billing.by_request("r1", 7, 500) == 1
        assert billing.by_request("r2", 7, 500) == 2, "a second click is a second charge"
        assert billing.by_operation(8, 500) == billing.by_operation(8, 500) == 3
        with pytest.raises(FingerprintMismatch):
            billing.by_operation(8, 600)
        assert billing.other_body_is_a_new_request(9, 1) == 4
        assert billing.other_body_is_a_new_request(9, 2) == 5
        assert which_key.summary(billing.charges) == [(7, 500), (7, 500), (8, 500), (9, 1), (9, 2)]


def test_keep_the_state_and_drop_the_body() -> None:
    with RetrySafe("memory://") as safe:
        runs: list[int] = []
        task = Task(Key("k", "acct"), safe.namespace, "POST /tokens", fingerprint_call("t", {}, frozenset()), Policy())

        class Work:
            def call(self, record: Any) -> str:
                runs.append(1)
                return "secret token"

            def answer(self, result: str) -> Answer:
                return Answer(201, {"token": result})

            def failure(self, error: Exception) -> Answer:
                raise AssertionError(error)

        assert safe.guard(task, Work()).answer.json() == {"token": "secret token"}
        assert which_key.drop_body(safe, task)
        with pytest.raises(AnswerGone):
            safe.guard(task, Work())
        assert runs == [1]


# Three ways -------------------------------------------------------------------------------------


class Lost(Exception):
    pass


def test_split_transaction_outbox_and_key_downstream(tmp_path: Path) -> None:
    down = [True]
    mails: dict[str, str] = {}

    def send(key: str, text: str) -> None:
        if down:
            raise Lost
        mails.setdefault(key, text)

    signup = three_ways.Signup(tmp_path, send)
    with signup.safe:
        with pytest.raises(Lost):
            signup.split("split@x")
        assert signup.outbox("outbox@x", key="1").status == 201
        with pytest.raises(NotFinished):
            signup.downstream("downstream@x", key="2")
        assert signup.users() == ["downstream@x", "outbox@x", "split@x"]
        down.clear()
        jobs = signup.safe.execute(three_ways_jobs())
        assert len(jobs) == 1
        Worker(signup.safe, grace=0).run_once()
        assert signup.downstream("downstream@x", key="2").status == 201
    assert sorted(mails.values()) == ["welcome downstream@x", "welcome outbox@x"], "the split one is lost for ever"


def three_ways_jobs() -> Any:
    from retrysafe.core.jobs import ListJobs

    return ListJobs()
