"""A message as handlers see it, whichever broker it came from, and how its id is found.

The id must come from the producer: chosen once per message and kept over the producer's retries. The numbers that a
broker assigns (a delivery tag, a Redis entry id, a Kafka offset) are new each time a producer sends again, so they are
never used.
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
"""What happens to a message without an id: it becomes a dead letter, or its id is made from its content."""

ID_HEADERS = ("message-id", "message_id", "x-message-id", "nats-msg-id", "idempotency-key")
"""Headers in which producers put an id if the protocol has no field for it."""

CLOUD_EVENTS = ("ce-{}", "ce_{}", "cloudevents:{}", "cloudevents_{}")
"""How the CloudEvents bindings spell an attribute in HTTP and NATS, in Kafka, and in AMQP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message. `id` identifies it; before the inbox has chosen the id, it is the one from the protocol's own field.

    `headers` have lower-case names. `deliveries` counts this delivery too; `failures` counts only deliveries whose
    handler failed, as far as the broker can tell. `content` is compared when an id is used again; if it is empty, the
    body is.
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
    """Headers with names in lower case and values as text. A value that is not text, bytes or a number is left out."""
    pairs = given.items() if isinstance(given, Mapping) else given or ()
    return {
        to_text(name).lower(): to_text(value)
        for name, value in pairs
        if isinstance(value, str | bytes | int | float) and not isinstance(value, bool)
    }


def to_text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


# The id ---------------------------------------------------------------------------------------------------------------


def build_id_reader(given: str | ReadId | None) -> ReadId:
    """The function that reads a message's id: the user's own, one that reads a named header, or the default."""
    if given is None:
        return find_usual_id
    if isinstance(given, str) and given:
        return lambda message: message.header(given)
    if callable(given):
        return given
    raise UsageError(f"id={given!r}: give the name of a header, or a function from a Message to its id")


def find_usual_id(message: Message) -> str | None:
    """The id in the protocol's own field, else in one of the usual headers, else that of a CloudEvent."""
    if message.id:
        return message.id
    named = next((message.headers[name] for name in ID_HEADERS if message.headers.get(name)), None)
    return named or read_cloud_event_id(message.headers)


def read_cloud_event_id(headers: Mapping[str, str]) -> str | None:
    """The id of a CloudEvent: its source and its id together, because only the pair is unique."""
    for spelling in CLOUD_EVENTS:
        id_, source = headers.get(spelling.format("id")), headers.get(spelling.format("source"))
        if id_:
            return json.dumps([source or "", id_])
    return None


def hash_payload(message: Message) -> str:
    """An id made from the content: two messages with equal content are then one message."""
    return f"sha256:{hashlib.sha256(frame(message.source, get_content(message))).hexdigest()}"


def get_content(message: Message) -> bytes:
    """What is compared when an id is used again."""
    return message.content or message.body
