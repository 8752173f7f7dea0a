"""Slack: `X-Slack-Signature: v0=…`, hex HMAC-SHA256 of `v0:{X-Slack-Request-Timestamp}:{body}`.

The id is in the signed body: `event_id` of an event, `trigger_id` of a command or an interaction. A body with neither
is identified by its digest. Slack sends `url_verification` when the URL is entered; it is answered and not stored.
"""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import parse_qs

from retrysafe.webhooks.schedules import SLACK
from retrysafe.webhooks.schemes import parts
from retrysafe.webhooks.schemes.base import Scheme, Verified
from retrysafe.webhooks.schemes.headers import Headers

HEADER = "X-Slack-Signature"
TIMESTAMP_HEADER = "X-Slack-Request-Timestamp"
PREFIX = "v0="


class Slack(Scheme):
    """`Slack("signing secret of the app")`."""

    name: ClassVar[str] = "slack"
    schedule = SLACK
    signature_headers = frozenset({HEADER.lower()})

    def read(self, headers: Headers, body: bytes, now: float) -> Verified:
        timestamp = headers.require(TIMESTAMP_HEADER)
        sent_at = self.parse_timestamp(timestamp, now)
        signature = headers.require(HEADER)
        code = parts.decode_hex(signature.removeprefix(PREFIX)) if signature.startswith(PREFIX) else None
        if not parts.has_valid_code([code], self.secrets, build_signed_content(timestamp, body)):
            raise self.unsigned_error()
        payload = read_payload(body)
        if payload.get("type") == "url_verification":
            return Verified("-", "-", "url_verification", sent_at, read_challenge(payload))
        id_ = (
            parts.parse_id(payload.get("event_id"))
            or parts.parse_id(payload.get("trigger_id"))
            or parts.hash_body(body)
        )
        return Verified(id_, id_, read_type(payload), sent_at)

    def sign(self, body: bytes, *, id: str, type: str = "", now: float) -> dict[str, str]:
        """The id and the type are in the body, so these arguments are not used."""
        timestamp = str(int(now))
        return {
            TIMESTAMP_HEADER: timestamp,
            HEADER: PREFIX + parts.compute_hmac(self.secrets[0], build_signed_content(timestamp, body)).hex(),
        }


def build_signed_content(timestamp: str, body: bytes) -> bytes:
    return f"v0:{timestamp}:".encode() + body


def read_payload(body: bytes) -> dict[str, Any]:
    """The body's fields. Events are JSON, commands are a form, interactions are JSON in a field of a form."""
    found = parts.parse_object(body)
    if found is not None:
        return found
    try:
        fields = {name: values[0] for name, values in parse_qs(body.decode("ascii"), max_num_fields=100).items()}
    except ValueError:
        return {}
    inner = parts.parse_object(fields["payload"].encode("utf-8", "replace")) if "payload" in fields else None
    return inner if inner is not None else fields


def read_type(payload: dict[str, Any]) -> str:
    """The type: `app_mention` of an event, `/deploy` of a command, `block_actions` of an interaction."""
    event = payload.get("event")
    inner = event.get("type") if payload.get("type") == "event_callback" and isinstance(event, dict) else None
    return (
        parts.text_or_empty(inner)
        or parts.text_or_empty(payload.get("type"))
        or parts.text_or_empty(payload.get("command"))
    )


def read_challenge(payload: dict[str, Any]) -> bytes:
    return parts.text_or_empty(payload.get("challenge")).encode("utf-8", "replace")
