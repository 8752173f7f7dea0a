"""How the demo's provider delivers its webhooks: at least once, signed, and again until the receiver answers 2xx.

The signature is that of Standard Webhooks, written here a second time: the provider is another company, and does not
use retrysafe.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx

SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    id text NOT NULL PRIMARY KEY,
    body text NOT NULL,
    tries integer NOT NULL DEFAULT 0,
    due real NOT NULL,
    delivered integer NOT NULL DEFAULT 0
);
"""

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
ANSWER_SECONDS = 10.0


def add_event(db: sqlite3.Connection, type_: str, charge: dict[str, Any]) -> None:
    """Note an event in the transaction of its charge: both happen, or neither."""
    id_ = charge["id"].replace("ch_", "evt_")
    body = {"type": type_, "id": id_, "data": {name: charge[name] for name in ("id", "order", "account", "amount")}}
    db.execute("INSERT INTO events (id, body, due) VALUES (?, ?, ?)", (id_, json.dumps(body), time.time()))


def sign_delivery(secret: str, id_: str, body: bytes, now: float) -> dict[str, str]:
    timestamp = str(int(now))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    code = hmac.digest(key, f"{id_}.{timestamp}.".encode() + body, "sha256")
    signature = f"v1,{base64.b64encode(code).decode()}"
    return {"webhook-id": id_, "webhook-timestamp": timestamp, "webhook-signature": signature}


class ProviderEvents(threading.Thread):
    """Sends what is due. `wake()` says that there is something new."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(daemon=True)
        self._connect = connect
        self._url, self._secret = os.environ["WEBHOOK_URL"], os.environ["WEBHOOK_SECRET"]
        self._news = threading.Event()
        self._stopping = False

    def wake(self) -> None:
        self._news.set()

    def stop(self) -> None:
        self._stopping = True
        self.wake()
        self.join()

    def run(self) -> None:
        with httpx.Client(timeout=ANSWER_SECONDS, limits=httpx.Limits(max_keepalive_connections=0)) as http:
            while not self._stopping:
                self._news.wait(self._seconds_until_due())
                self._news.clear()
                for event in self._list_due():
                    self._note(event, self._deliver(http, event["id"], event["body"].encode()))

    def _seconds_until_due(self) -> float | None:
        with closing(self._connect()) as db:
            (due,) = db.execute("SELECT min(due) FROM events WHERE NOT delivered").fetchone()
        return None if due is None else max(0.0, due - time.time())

    def _list_due(self) -> list[sqlite3.Row]:
        query = "SELECT * FROM events WHERE NOT delivered AND due <= ? ORDER BY due"
        with closing(self._connect()) as db:
            return [] if self._stopping else db.execute(query, (time.time(),)).fetchall()

    def _deliver(self, http: httpx.Client, id_: str, body: bytes) -> bool:
        headers = sign_delivery(self._secret, id_, body, time.time()) | {"content-type": "application/json"}
        try:
            return http.post(self._url, content=body, headers=headers).is_success
        except httpx.TransportError:
            return False

    def _note(self, event: sqlite3.Row, delivered: bool) -> None:
        pause = min(FIRST_PAUSE_SECONDS * 2 ** event["tries"], LONGEST_PAUSE_SECONDS)
        change = "UPDATE events SET tries = tries + 1, delivered = ?, due = ? WHERE id = ?"
        with closing(self._connect()) as db, db:
            db.execute(change, (delivered, time.time() + pause, event["id"]))
