"""A receiver as a FastAPI route: `app.post("/webhooks/stripe")(endpoint(receiver))`. This file exists for its import
path: it is Starlette's `endpoint` under the name that FastAPI users import."""

from __future__ import annotations

from retrysafe.webhooks.starlette import endpoint

__all__ = ["endpoint"]
