"""What a developer sends in the first minutes: for pictures, and for pages that are looked at."""

from __future__ import annotations

from retrysafe.console.request_log import SeenRequest


def make_requests(began: float) -> list[SeenRequest]:
    """One key that ran, was sent again, and was sent with another amount and to another address; and a new key."""
    body = {"amount": "100", "to": '"acme"'}
    ran = SeenRequest(began, "POST", "/payments", "order-7", 201, False, "", body, media_type="application/json")
    problem = {"status": 422, "problem": "Idempotency-Key was used with another request", "problem_type": "mismatch"}
    return [
        ran,
        ran._replace(at=began + 4, replayed=True),
        ran._replace(at=began + 21, fields={**body, "amount": "1000"}, **problem),
        ran._replace(at=began + 33, path="/refunds", **problem),
        ran._replace(
            at=began + 40, key="", status=400, problem="Idempotency-Key is missing", problem_type="missing-key"
        ),
        ran._replace(at=began + 52, key="order-8", query="currency=eur"),
    ]
