"""The example applications of Flask and Django, used as their readers would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
ORDER = {"amount": 10000, "currency": "usd"}


def sent(token: str = "alice-token") -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "Idempotency-Key": "k1"}


def test_one_click_one_charge_in_flask(sqlite_url: str) -> None:
    from examples.flask_payments import app as example

    example.charges.clear()
    app = example.create_app(sqlite_url)
    http: Any = app.test_client()
    first, again = (http.post("/payments", headers=sent(), json=ORDER) for _ in range(2))
    assert first.status_code == 201, first.text
    assert (again.data, again.headers["Location"]) == (first.data, first.headers["Location"])
    assert again.headers["Idempotent-Replayed"] == "true"
    assert http.post("/payments", headers=sent("bob-token"), json=ORDER).json["id"] != first.json["id"]
    assert http.post("/payments", headers=sent("mallory"), json=ORDER).status_code == 401
    assert http.post("/payments", headers=sent(), json={**ORDER, "amount": 1}).status_code == 422
    assert http.get(first.headers["Location"], headers=sent()).json == first.json
    assert http.get(first.headers["Location"], headers=sent("bob-token")).status_code == 404
    assert len(http.get("/provider/charges").json) == 2, "alice's and bob's"
    assert http.get("/console/keys", headers=sent()).status_code == 401, "a customer is no operator"
    assert "POST /payments" in http.get("/console/keys", headers=sent("olga-token")).text
    app.extensions["retrysafe"].settings.safe.close()


STORY = """
from django.test import Client

def sent(token):
    return {"Authorization": f"Bearer {token}", "Idempotency-Key": "k-" + where}

def pay(token="alice-token", amount=10000):
    body = {"amount": amount, "currency": "usd"}
    return Client().post(where, body, "application/json", headers=sent(token))

for where in ("/payments", "/api/payments"):
    first, again = pay(), pay()
    assert first.status_code == 201, first.content
    assert again.content == first.content and again.headers["Idempotent-Replayed"] == "true"
    assert pay("bob-token").json()["id"] != first.json()["id"]
    assert pay("mallory").status_code == 401
    assert pay(amount=1).status_code == 422
    assert len(Client().get("/provider/charges").json()) % 2 == 0
    assert Client().get("/console/keys", headers=sent("alice-token")).status_code == 401
    assert where in Client().get("/console/keys", headers=sent("olga-token")).content.decode()
"""


def test_one_click_one_charge_in_django(tmp_path: Path) -> None:
    """In a process of its own: Django is set up once for a process."""

    def manage(*command: str) -> None:
        env = {**os.environ, "PAYMENTS_DB": str(tmp_path / "payments.db"), "PYTHONPATH": str(ROOT)}
        call = [sys.executable, "-m", "examples.django_payments.manage", *command]
        done = subprocess.run(call, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    manage("check")
    manage("migrate")
    manage("shell", "-c", STORY)
