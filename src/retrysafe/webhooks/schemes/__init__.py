"""How senders sign: one file per scheme. Pure: bytes and a time go in, a verified event or VerificationError comes
out."""

from __future__ import annotations

from retrysafe.webhooks.schemes.base import Scheme, Verified
from retrysafe.webhooks.schemes.custom import Custom
from retrysafe.webhooks.schemes.github import GitHub
from retrysafe.webhooks.schemes.shopify import Shopify
from retrysafe.webhooks.schemes.slack import Slack
from retrysafe.webhooks.schemes.standard import StandardWebhooks, Svix
from retrysafe.webhooks.schemes.stripe import Stripe

__all__ = ["Custom", "GitHub", "Scheme", "Shopify", "Slack", "StandardWebhooks", "Stripe", "Svix", "Verified"]
