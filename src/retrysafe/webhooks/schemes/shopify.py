"""Shopify: `X-Shopify-Hmac-SHA256`, base64 HMAC-SHA256 of the body alone; the key is the app's client secret.

Only the body is signed: no time, no id, no topic. `identity` says what identifies an event.

- `"delivery"` (default): `X-Shopify-Webhook-Id`, the same on every retry, together with the signed body.
- `"event"`: `X-Shopify-Event-Id`, the same for one event over several subscriptions, together with the signed body.
- `"body"`: the topic and the signed body. `orders/create` and `orders/paid` of one order may have the same body, so
  with the body alone one of them would be lost.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from retrysafe.errors import UsageError
from retrysafe.webhooks.schedules import SHOPIFY
from retrysafe.webhooks.schemes import parts
from retrysafe.webhooks.schemes.base import Scheme, Secret, Verified, bind_id_to_body
from retrysafe.webhooks.schemes.headers import Headers

HEADER = "X-Shopify-Hmac-SHA256"

ShopifyIdentity = Literal["delivery", "event", "body"]
_ID_HEADERS: dict[str, str] = {
    "delivery": "X-Shopify-Webhook-Id",
    "event": "X-Shopify-Event-Id",
    "body": "X-Shopify-Webhook-Id",
}


class Shopify(Scheme):
    """`Shopify("client secret of the app")`."""

    name: ClassVar[str] = "shopify"
    schedule = SHOPIFY
    max_body = 10 << 20  # orders with many lines are larger than most events
    signature_headers = frozenset({HEADER.lower()})

    def __init__(self, *secrets: Secret, identity: ShopifyIdentity = "delivery") -> None:
        if identity not in _ID_HEADERS:
            raise UsageError(f"Shopify(identity={identity!r}): choose one of {', '.join(map(repr, _ID_HEADERS))}")
        super().__init__(*secrets)
        self.identity = identity

    def read(self, headers: Headers, body: bytes, now: float) -> Verified:
        if not parts.has_valid_code([parts.decode_base64(headers.require(HEADER))], self.secrets, body):
            raise self.unsigned_error()
        topic = self.check_id(headers.require("X-Shopify-Topic"), "X-Shopify-Topic")
        name = _ID_HEADERS[self.identity]
        id_ = self.check_id(headers.require(name), name)
        return Verified(id_, bind_id_to_body(topic if self.identity == "body" else f"{id_} {topic}", body), topic, None)

    def sign(self, body: bytes, *, id: str, type: str = "orders/create", now: float = 0) -> dict[str, str]:
        code = parts.encode_base64(parts.compute_hmac(self.secrets[0], body))
        return {HEADER: code, "X-Shopify-Topic": type, _ID_HEADERS[self.identity]: id}
