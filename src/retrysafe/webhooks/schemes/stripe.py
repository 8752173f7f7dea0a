"""Stripe: `Stripe-Signature: t=…,v1=…[,v1=…]`, hex HMAC-SHA256 of `{t}.{body}`, with the secret's text as the key.

The id is the event's own, in the signed body. Stripe's library accepts times in the future; this scheme does not.
"""

from __future__ import annotations

from typing import ClassVar

from retrysafe.webhooks.schedules import STRIPE
from retrysafe.webhooks.schemes import parts
from retrysafe.webhooks.schemes.base import Scheme, Verified
from retrysafe.webhooks.schemes.headers import Headers

HEADER = "Stripe-Signature"


class Stripe(Scheme):
    """`Stripe("whsec_…")`: the signing secret of the endpoint, as the dashboard shows it."""

    name: ClassVar[str] = "stripe"
    schedule = STRIPE
    signature_headers = frozenset({HEADER.lower()})

    def read(self, headers: Headers, body: bytes, now: float) -> Verified:
        items = self.check_signature_count(headers.require(HEADER).split(","))
        times = [item[2:] for item in items if item.startswith("t=")]
        if len(times) != 1:
            raise self.verification_error(f"{HEADER} has {len(times)} times (t=) instead of one")
        sent_at = self.parse_timestamp(times[0], now)
        codes = [parts.decode_hex(item[3:]) for item in items if item.startswith("v1=")]
        if not parts.has_valid_code(codes, self.secrets, f"{times[0]}.".encode() + body):
            raise self.unsigned_error()
        event = parts.parse_object(body) or {}
        id_ = self.check_id(event.get("id"), "the event's `id`")
        return Verified(id_, id_, parts.text_or_empty(event.get("type")), sent_at)

    def sign(self, body: bytes, *, id: str, type: str = "", now: float) -> dict[str, str]:
        """The id and the type are in the body, so these arguments are not used."""
        timestamp = str(int(now))
        codes = [parts.compute_hmac(secret, f"{timestamp}.".encode() + body).hex() for secret in self.secrets]
        return {HEADER: ",".join([f"t={timestamp}", *(f"v1={code}" for code in codes)])}
