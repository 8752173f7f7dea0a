"""Senders for the tests: each signs as its scheme requires, and puts id and type where its scheme reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from retrysafe.webhooks import Custom, GitHub, Scheme, Shopify, Slack, StandardWebhooks, Stripe, Svix

NOW = 1_700_000_000.0
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLD_SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
SIGNING_KEY = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
PUBLIC_KEY = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="


class Sent(NamedTuple):
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Sender:
    scheme: Scheme
    signs_id: bool = True

    def send(self, id: str = "evt-1", type: str = "order.paid", now: float = NOW, **data: object) -> Sent:
        inner = {"id": id, "type": type, **data}
        if isinstance(self.scheme, Slack):
            inner = {"type": "event_callback", "event_id": id, "event": {"type": type}, **data}
        body = json.dumps(inner).encode()
        return Sent(self.scheme.sign(body, id=id, type=type, now=now), body)


SENDERS: dict[str, Sender] = {
    "standard": Sender(StandardWebhooks(SECRET, OLD_SECRET)),
    "standard-ed25519": Sender(StandardWebhooks(SIGNING_KEY)),
    "svix": Sender(Svix(SECRET)),
    "stripe": Sender(Stripe("whsec_new", "whsec_old")),
    "github": Sender(GitHub("It's a Secret to Everybody"), signs_id=False),
    "shopify": Sender(Shopify("client secret"), signs_id=False),
    "slack": Sender(Slack("8f742231b10e8888abcd99yyyzzz85a5")),
    "custom": Sender(
        Custom(
            "acme", "secret", signature="X-Acme-Signature", prefix="sha256=", content="{timestamp}.{body}",
            timestamp="X-Acme-Time", id_field="id", type_field="type",
        )
    ),
}  # fmt: skip

TIMED = [name for name in SENDERS if name not in ("github", "shopify")]
