"""What happened, as events: emitted by the network and the supervisor, streamed to every open page."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

KEPT_EVENTS = 1000
"""For a page whose stream was interrupted: it asks for what came after the last event it saw."""


class EventBus:
    def __init__(self) -> None:
        self._kept: deque[tuple[int, str]] = deque(maxlen=KEPT_EVENTS)
        self._number = 0
        self._streams: set[asyncio.Queue[str | None]] = set()

    def emit(self, what: str, **fields: Any) -> None:
        self._number += 1
        event = {"what": what, "at": read_clock(), **fields}
        text = f"id: {self._number}\ndata: {json.dumps(event)}\n\n"
        self._kept.append((self._number, text))
        for queue in self._streams:
            queue.put_nowait(text)

    def close(self) -> None:
        """End every stream: a server that stops waits for its open answers."""
        for queue in self._streams:
            queue.put_nowait(None)

    async def stream(self, after: int | None = None) -> AsyncIterator[str]:
        """The events after a number (None: only those to come), as `text/event-stream`."""
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        missed = [text for number, text in self._kept if after is not None and number > after]
        self._streams.add(queue)
        try:
            yield f"retry: 500\ndata: {json.dumps({'what': 'hello', 'at': read_clock()})}\n\n"
            for text in missed:
                yield text
            while (news := await queue.get()) is not None:
                yield news
        finally:
            self._streams.discard(queue)


def read_clock() -> int:
    """Milliseconds since 1970, as browsers count."""
    return round(time.time() * 1000)
