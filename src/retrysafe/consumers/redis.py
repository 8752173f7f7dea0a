"""Redis and Valkey streams, with redis-py's asyncio client.

    await redis.consume(client, "orders", "billing", inbox)

A message is acknowledged after the commit. A message that was not acknowledged stays in the group's list of pending
entries. After `idle` seconds any consumer of the group may claim it, this one included: so a message for later is
delivered again, and so is the message of a consumer that died. Dead letters go to the stream `<stream>:dead`. The id is
the field `id` (as `RedisStreamPublisher` writes it) or `message_id`, never the entry's own id: a producer that sends
again gets a new one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from retrysafe.consumers.common import gather_all, run_forever, shorten_reason
from retrysafe.consumers.inbox import Inbox
from retrysafe.consumers.message import Message, normalize_headers
from retrysafe.consumers.verdicts import Dead, Done, Verdict
from retrysafe.core.keys import frame
from retrysafe.errors import UsageError

IDLE_SECONDS = 60.0
"""How long an entry may be pending before another consumer claims it; longer than most handlers take."""
REASON_FIELD = "retrysafe-reason"
BODY_FIELD = "payload"

StreamEntry = tuple[bytes, Mapping[bytes, bytes]]


async def consume(
    client: Redis,
    stream: str,
    group: str,
    inbox: Inbox,
    *,
    name: str = "",
    idle: float = IDLE_SECONDS,
    at_once: int = 16,
    body: str = BODY_FIELD,
) -> None:
    """Feed the inbox from a stream until cancelled."""
    await Consumer(client, stream, group, inbox, name=name, idle=idle, at_once=at_once, body=body).run()


class Consumer:
    """One member of a consumer group. `name` is its name in the group; `body` is the field with the message's body."""

    def __init__(
        self,
        client: Redis,
        stream: str,
        group: str,
        inbox: Inbox,
        *,
        name: str = "",
        idle: float = IDLE_SECONDS,
        at_once: int = 16,
        body: str = BODY_FIELD,
    ) -> None:
        if client.connection_pool.connection_kwargs.get("decode_responses"):
            raise UsageError("this client decodes what it reads, and a message is bytes; use decode_responses=False")
        self.inbox = inbox
        self.dead_stream = f"{stream}:dead"
        self._client = client
        self._stream = stream
        self._group = group
        self._name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._idle = idle
        self._at_once = at_once
        self._body = body
        self._cursor: Any = "0-0"
        self._has_group = False

    async def run(self) -> None:
        await run_forever(self.run_once)

    async def run_once(self, wait: float = 1.0) -> int:
        """Claim idle entries, else read new ones, waiting at most `wait` seconds, and handle them. Returns the number
        of messages."""
        if not self._has_group:
            await self._make_group()
        entries = await self._claim_idle() or await self._read_new(wait)
        await gather_all([self.handle(*each) for each in entries])
        return len(entries)

    async def handle(self, entry: StreamEntry, deliveries: int) -> Verdict:
        """Handle one entry, then acknowledge it."""
        entry_id, fields = entry
        verdict = await self.inbox.aprocess(read_message(entry, self._stream, self._body, deliveries))
        if isinstance(verdict, Dead):
            dead_letter: dict[Any, Any] = {**fields, REASON_FIELD: shorten_reason(verdict)}
            await self._client.xadd(self.dead_stream, dead_letter)
        if isinstance(verdict, Dead | Done):
            await self._client.xack(self._stream, self._group, entry_id)
        return verdict

    async def _read_new(self, wait: float) -> list[tuple[StreamEntry, int]]:
        block = max(int(wait * 1000), 1)
        found: Any = await self._client.xreadgroup(
            self._group, self._name, {self._stream: ">"}, count=self._at_once, block=block
        )
        streams = found.items() if isinstance(found, dict) else found or ()
        return [(entry, 1) for entry in _parse_entries(streams)]

    async def _claim_idle(self) -> list[tuple[StreamEntry, int]]:
        found: Any = await self._client.xautoclaim(
            self._stream, self._group, self._name, int(self._idle * 1000), self._cursor, count=self._at_once
        )
        self._cursor = found[0]
        # An entry that was trimmed from the stream has no fields, so it cannot be handled.
        entries = [(entry_id, fields) for entry_id, fields in found[1] if fields]
        return [(entry, await self._count_deliveries(entry[0])) for entry in entries]

    async def _count_deliveries(self, entry_id: bytes) -> int:
        pending: Any = await self._client.xpending_range(self._stream, self._group, entry_id, entry_id, 1)
        return int(pending[0]["times_delivered"]) if pending else 1

    async def _make_group(self) -> None:
        """Create the group at the stream's first entry, so that a new consumer gets every entry."""
        try:
            await self._client.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._has_group = True


def _parse_entries(streams: Any) -> list[StreamEntry]:
    """The entries of a reply for one stream, in either protocol version."""
    return [
        (entry[0], entry[1])
        for _, entries in streams
        for entry in (entries[0] if entries and isinstance(entries[0], list) else entries)
    ]


def read_message(entry: StreamEntry, stream: str, body: str, deliveries: int) -> Message:
    _, fields = entry
    headers = normalize_headers(fields)
    return Message(
        body=fields.get(body.encode(), b""),
        source=stream,
        id=headers.get("id") or headers.get("message_id") or "",
        headers=headers,
        deliveries=deliveries,
        failures=deliveries - 1,
        content=frame(*(part for name in sorted(fields) for part in (name, fields[name]))),
        raw=entry,
    )
