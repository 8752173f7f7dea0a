"""An application with an inbox, as `retrysafe worker tests.webhooks.inbox_app:safe` finds it, and its receiving
process:

    python -m tests.webhooks.inbox_app COUNT

receives that many events, each sent twice. The environment gives its database (`INBOX_DATABASE`) and the moment at
which it kills itself with SIGKILL: `INBOX_KILL` is `taken` (committed to the inbox, the sender not answered), `handler`
(in the handler, after its write) or `done` (committed, and nothing else done), `INBOX_KILL_AT` the number of the event.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys

from retrysafe.engine.events import RecordEvent as Happened
from retrysafe.engine.safe import RetrySafe
from retrysafe.webhooks import Event, Receiver
from tests.webhooks.senders import NOW, SENDERS

DATABASE = os.environ["INBOX_DATABASE"]
KILL = os.environ.get("INBOX_KILL", "")
KILL_AT = int(os.environ.get("INBOX_KILL_AT", "0"))
SLACK = SENDERS["slack"]

counts = {"taken": 0, "handler": 0, "done": 0}


def came_to(moment: str) -> None:
    counts[moment] += 1
    if moment == KILL and counts[moment] == KILL_AT:
        os.kill(os.getpid(), signal.SIGKILL)


def kill_on_event(happened: Happened) -> None:
    if happened.name == "completed":
        came_to("done")


safe = RetrySafe(f"sqlite:///{DATABASE}", tx=DATABASE, on_event=kill_on_event)
# A worker that died keeps its event until the lease lapses, which is part of the test.
receiver = Receiver(safe, SLACK.scheme, inbox=True, clock=lambda: NOW, lease=1.0)


@receiver.on()
def handle(event: Event, tx: sqlite3.Connection) -> None:
    tx.execute("INSERT INTO effects VALUES (?)", [event.id])
    came_to("handler")


def main(count: int) -> None:
    for number in range(count):
        for _ in range(2):
            assert receiver.receive(*SLACK.send(f"Ev{number}")).status == 200
            came_to("taken")


if __name__ == "__main__":
    main(int(sys.argv[1]))
