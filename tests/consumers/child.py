"""A consumer in its own process, which kills itself (SIGKILL) at a given moment.

    python -m tests.consumers.child BROKER URL NAME DATABASE STRENGTH MOMENT COUNT

MOMENT is `ack` (the inbox has committed, the broker has no acknowledgement yet) or `handler` (in the middle of the
handler); COUNT is the number of the new message at which it dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from retrysafe.consumers import Done, Inbox, Message, Verdict
from retrysafe.engine.safe import RetrySafe
from tests.consumers.brokers import broker_of


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly(Inbox):
    """An inbox whose process dies between the commit and the acknowledgement."""

    countdown = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turn = asyncio.Lock()
        """One message after the other: a guarded message that is being handled when the process dies is handled
        again."""

    async def aprocess(self, message: Message, handler: Any = None) -> Verdict:
        async with self._turn:
            return await self._process(message, handler)

    async def _process(self, message: Message, handler: Any) -> Verdict:
        verdict = await super().aprocess(message, handler)
        if isinstance(verdict, Done) and not verdict.replayed:
            self.countdown -= 1
            if self.countdown == 0:
                die()
        return verdict


def inbox_at(database: Path, strength: str, kill_in_handler_at: int = 0, **options: Any) -> Deadly:
    """The effects of a handler with `tx` are rows of its transaction; those of a handler without it are lines of a
    file."""
    safe = RetrySafe(f"sqlite:///{database}", tx=str(database))
    inbox = Deadly(safe, "tests", lease=5.0, pause=lambda failures: 0.0, **options)
    seen = [0]

    def counted() -> None:
        seen[0] += 1
        if seen[0] == kill_in_handler_at:
            die()

    def in_transaction(message: Message, tx: sqlite3.Connection) -> None:
        tx.execute("INSERT INTO effects VALUES (?)", [message.body.decode()])
        counted()

    async def guarded(message: Message) -> None:
        with database.with_suffix(".effects").open("a") as effects:
            effects.write(message.body.decode() + "\n")

    inbox.handler(in_transaction if strength == "transaction" else guarded)
    return inbox


async def main(kind: str, url: str, name: str, database: str, strength: str, moment: str, count: str) -> None:
    inbox = inbox_at(Path(database), strength, int(count) if moment == "handler" else 0)
    if moment == "ack":
        inbox.countdown = int(count)
    async with broker_of(kind, url, name).consume(inbox) as task:
        await task


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
