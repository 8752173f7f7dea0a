"""Webhooks: verify the delivery, deduplicate the event, run its handler, answer 2xx.

    stripe = webhooks.Receiver(safe, webhooks.Stripe("whsec_…"))

    @stripe.on("invoice.paid")
    def paid(event: webhooks.Event) -> None: ...

Mount it with `endpoint(receiver)` of retrysafe.webhooks.asgi, .wsgi, .starlette, .fastapi, .flask or .django.
"""

from __future__ import annotations

from retrysafe.errors import VerificationError
from retrysafe.webhooks.event import Event
from retrysafe.webhooks.receiver import Receiver
from retrysafe.webhooks.schedules import Schedule
from retrysafe.webhooks.schemes import (
    Custom,
    GitHub,
    Scheme,
    Shopify,
    Slack,
    StandardWebhooks,
    Stripe,
    Svix,
    Verified,
)

__all__ = [
    "Custom",
    "Event",
    "GitHub",
    "Receiver",
    "Schedule",
    "Scheme",
    "Shopify",
    "Slack",
    "StandardWebhooks",
    "Stripe",
    "Svix",
    "VerificationError",
    "Verified",
]
