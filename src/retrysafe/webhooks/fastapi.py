"""A receiver as a route of FastAPI: `app.post("/webhooks/stripe")(endpoint(receiver))`."""

from __future__ import annotations

from retrysafe.webhooks.starlette import endpoint

__all__ = ["endpoint"]
