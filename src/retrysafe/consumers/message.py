"""A message as handlers see it, whichever broker it came from; and by what it is known.

The id must be the producer's: given once per message and kept over its retries. What a broker numbers by itself (a
delivery tag, a Redis entry id, a Kafka offset) is another one each time a producer sends again, so it is never taken.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from retrysafe.core.keys import frame
from retrysafe.errors import UsageError

Missing = Literal["dead", "payload"]
"""What becomes of a message without an id: dead letters, or an id made from what it says."""

ID_HEADERS = ("message-id", "message_id", "x-message-id", "nats-msg-id", "idempotency-key")
"""Where producers put an id if the protocol has no place for it."""

CLOUD_EVENTS = ("ce-{}", "ce_{}", "cloudevents:{}", "cloudevents_{}")
"""How the CloudEvents bindings spell an attribute in HTTP and NATS, in Kafka, and in AMQP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """`id` is what the message is known by; on its way in, the one the protocol has a place for.

    `headers` have lower-case names. `deliveries` counts this one too, `failures` only those whose handler failed, as
    far as the broker can tell. `content` is what makes two messages with one id the same; without it, the body.
    """

    body: bytes
    source: str = ""
    id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    deliveries: int = 1
    failures: int = 0
    content: bytes = b""
    raw: Any = None

    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return self.headers.get(name.lower())


ReadId = Callable[[Message], str | None]


def normalize_headers(given: Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None) -> dict[str, str]:
    """Names in lower case, values as text. What is neither text nor bytes nor a number is left out."""
    pairs = given.items() if isinstance(given, Mapping) else given or ()
    return {
        to_text(name).lower(): to_text(value)
        for name, value in pairs
        if isinstance(value, str | bytes | int | float) and not isinstance(value, bool)
    }


def to_text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


# Which id -------------------------------------------------------------------------------------------------------------


def build_id_reader(given: str | ReadId | None) -> ReadId:
    """How the id of a message is found: by the user's function, by the name of a header, or where it usually is."""
    if given is None:
        return find_usual_id
    if isinstance(given, str) and given:
        return lambda message: message.header(given)
    if callable(given):
        return given
    raise UsageError(f"id={given!r}: give the name of a header, or a function from a Message to its id")


def find_usual_id(message: Message) -> str | None:
    """The protocol's own, then a header that is usual, then that of a CloudEvent."""
    if message.id:
        return message.id
    named = next((message.headers[name] for name in ID_HEADERS if message.headers.get(name)), None)
    return named or read_cloud_event_id(message.headers)


def read_cloud_event_id(headers: Mapping[str, str]) -> str | None:
    """CloudEvents are unique by source and id together, and by neither alone."""
    for spelling in CLOUD_EVENTS:
        id_, source = headers.get(spelling.format("id")), headers.get(spelling.format("source"))
        if id_:
            return json.dumps([source or "", id_])
    return None


def hash_payload(message: Message) -> str:
    """An id made from what the message says: two messages that say the same are then one."""
    return f"sha256:{hashlib.sha256(frame(message.source, content_of(message))).hexdigest()}"


def content_of(message: Message) -> bytes:
    return message.content or message.body
