"""Payments with Quart: one click, one charge, however often it is sent.

    hypercorn examples.quart_payments.app:app

    curl -i localhost:8000/payments -H 'Authorization: Bearer alice-token' -H 'Idempotency-Key: k1' \
         -H 'Content-Type: application/json' -d '{"amount": 10000, "currency": "usd"}'
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from quart import Quart, abort, g, jsonify, request

from retrysafe import Policy, RetrySafe, derive
from retrysafe.web.quart import current_key, idempotent, install

safe = RetrySafe(os.environ.get("RETRYSAFE_URL", "sqlite:///payments.db"))
app = Quart(__name__)
install(app, safe=safe)


@app.before_serving
def migrate() -> None:
    safe.migrate()


@app.after_serving
async def close() -> None:
    await safe.aclose()


# Who asks ----------------------------------------------------------------------------------------

TOKENS = {"alice-token": "alice", "bob-token": "bob"}


def signed_in(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    async def checked(*args: Any, **kwargs: Any) -> Any:
        g.account = TOKENS.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if g.account is None:
            abort(401)
        return await view(*args, **kwargs)

    return checked


# The payment provider: somebody else's system, which takes keys of its own -----------------------


class Provider:
    def __init__(self) -> None:
        self.charges: dict[str, dict[str, Any]] = {}

    async def charge(self, amount: int, currency: str, *, key: str) -> str:
        charge = self.charges.setdefault(key, {"id": f"ch_{uuid4().hex[:12]}", "amount": amount, "currency": currency})
        return str(charge["id"])


provider = Provider()

# The API -----------------------------------------------------------------------------------------

payments: dict[tuple[str, str], dict[str, Any]] = {}


@app.post("/payments")
@signed_in
@idempotent(scope=lambda: g.account, policy=Policy.preset("create_payment"))
async def pay() -> Any:
    order, key = await request.get_json(), current_key()
    if not isinstance(order, dict) or not isinstance(order.get("amount"), int) or key is None:
        abort(422)
    # A key of ours for the provider: if we die after this call, whoever tries again charges nothing new.
    charge = await provider.charge(order["amount"], order["currency"], key=derive(key, "provider", "charge"))
    payment = {"id": f"pay_{uuid4().hex[:12]}", "charge": charge, **order}
    payments[g.account, payment["id"]] = payment
    return payment, 201, {"Location": f"/payments/{payment['id']}"}


@app.get("/payments/<id>")
@signed_in
async def show(id: str) -> Any:
    if (g.account, id) not in payments:
        abort(404)
    return payments[g.account, id]


@app.get("/provider/charges")
async def charges() -> Any:
    return jsonify(list(provider.charges.values()))
