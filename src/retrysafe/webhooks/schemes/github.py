"""GitHub: `X-Hub-Signature-256: sha256=…`, hex HMAC-SHA256 of the body alone.

Only the body is signed: no time, no id, no event name. `identity` says what identifies an event.

- `"delivery"` (default): `X-GitHub-Delivery`, which stays the same in a redelivery, **together with the name of the
  event and the signed body**. The body alone is not enough: two `workflow_dispatch` with the same inputs have the same
  body and are two events. An attacker who has a signed body can send it under another id, and it is handled again.
- `"body"`: the signed body and the event's name. No body is handled twice; two events with the same body are one.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from retrysafe.errors import UsageError
from retrysafe.webhooks.schedules import GITHUB
from retrysafe.webhooks.schemes import parts
from retrysafe.webhooks.schemes.base import Scheme, Secret, Verified, bind_id_to_body
from retrysafe.webhooks.schemes.headers import Headers

HEADER = "X-Hub-Signature-256"
PREFIX = "sha256="

GitHubIdentity = Literal["delivery", "body"]


class GitHub(Scheme):
    """`GitHub("secret")`: the secret of the webhook."""

    name: ClassVar[str] = "github"
    schedule = GITHUB
    max_body = 25 << 20  # GitHub's own limit
    signature_headers = frozenset({HEADER.lower(), "x-hub-signature"})

    def __init__(self, *secrets: Secret, identity: GitHubIdentity = "delivery") -> None:
        if identity not in ("delivery", "body"):
            raise UsageError(f"GitHub(identity={identity!r}): choose 'delivery' or 'body'")
        super().__init__(*secrets)
        self.identity = identity

    def read(self, headers: Headers, body: bytes, now: float) -> Verified:
        signature = headers.require(HEADER)
        code = parts.decode_hex(signature.removeprefix(PREFIX)) if signature.startswith(PREFIX) else None
        if not parts.has_valid_code([code], self.secrets, body):
            raise self.unsigned_error()
        type_ = self.check_id(headers.require("X-GitHub-Event"), "X-GitHub-Event")
        id_ = self.check_id(headers.require("X-GitHub-Delivery"), "X-GitHub-Delivery")
        return Verified(id_, bind_id_to_body(type_ if self.identity == "body" else f"{id_} {type_}", body), type_, None)

    def sign(self, body: bytes, *, id: str, type: str = "ping", now: float = 0) -> dict[str, str]:
        code = parts.compute_hmac(self.secrets[0], body).hex()
        return {HEADER: PREFIX + code, "X-GitHub-Event": type, "X-GitHub-Delivery": id}
