"""Payments with Flask: one click, one charge, however often it is sent.

    flask --app examples.flask_payments.app run --port 8000
    gunicorn 'examples.flask_payments.app:create_app()'         # or this

    curl -i localhost:8000/payments -H 'Authorization: Bearer alice-token' -H 'Idempotency-Key: k1' \
         -H 'Content-Type: application/json' -d '{"amount": 10000, "currency": "usd"}'

Send it again: the same payment, `Idempotent-Replayed: true`, one charge in /provider/charges.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any
from uuid import uuid4

from flask import Blueprint, Flask, abort, g, jsonify, request, url_for

from retrysafe import Policy, RetrySafe, derive
from retrysafe.console import Console, ConsoleRequest, Operator
from retrysafe.web.flask import Idempotency, current_key

idempotency = Idempotency(scope=lambda: g.account, policy=Policy.preset("create_payment"))
api = Blueprint("payments", __name__)

# Who asks ----------------------------------------------------------------------------------------

TOKENS = {"alice-token": "alice", "bob-token": "bob"}


def token_required(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def checked(*args: Any, **kwargs: Any) -> Any:
        account = TOKENS.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if account is None:
            abort(401)
        g.account = account
        return view(*args, **kwargs)

    return checked


# The console, for the people who operate this: http://localhost:8000/console/ ---------------------

OPERATORS = {"olga-token": "olga"}


def find_operator(visited: ConsoleRequest) -> Operator | None:
    name = OPERATORS.get(visited.headers.get("authorization", "").removeprefix("Bearer "))
    return Operator(name) if name else None


# The payment provider: somebody else's system, which takes keys of its own -----------------------

charges: dict[str, dict[str, Any]] = {}


def charge(amount: int, currency: str, *, key: str) -> str:
    made = charges.setdefault(key, {"id": f"ch_{uuid4().hex[:12]}", "amount": amount, "currency": currency})
    return str(made["id"])


# The API -----------------------------------------------------------------------------------------

payments: dict[tuple[str, str], dict[str, Any]] = {}


@api.post("/payments")
@token_required
@idempotency.protect()
def pay() -> Any:
    given = request.get_json()
    amount, currency = given.get("amount"), given.get("currency")
    if not isinstance(amount, int) or amount <= 0 or not isinstance(currency, str):
        abort(400, "give an amount in the smallest unit, and a currency")
    # A key of ours for the provider: if we die after this call, whoever tries again charges nothing new.
    charged = charge(amount, currency, key=derive(current_key(), "provider", "charge"))
    payment = {"id": f"pay_{uuid4().hex[:12]}", "charge": charged, "amount": amount, "currency": currency}
    payments[g.account, payment["id"]] = payment
    return jsonify(payment), 201, {"Location": url_for("payments.show", number=payment["id"])}


@api.get("/payments/<number>")
@token_required
def show(number: str) -> Any:
    if (g.account, number) not in payments:
        abort(404)
    return jsonify(payments[g.account, number])


@api.get("/provider/charges")
def all_charges() -> Any:
    return jsonify(list(charges.values()))


def create_app(url: str | None = None) -> Flask:
    app = Flask(__name__)
    app.config["RETRYSAFE_URL"] = url or os.environ.get("RETRYSAFE_URL", "sqlite:///payments.db")
    app.register_blueprint(api)
    idempotency.init_app(app)
    with app.app_context():
        safe: RetrySafe = idempotency.safe
    safe.migrate()  # here for convenience; a real deployment runs `retrysafe migrate URL` once
    console = Console(safe, authenticate=find_operator)
    app.wsgi_app = console.mount_wsgi(app.wsgi_app, "/console")  # type: ignore[method-assign]
    return app
