"""The demo's payment provider: a separate database file, and no use of retrysafe.

Like real providers it takes an idempotency key with each charge, and returns the first charge when it gets the key
again. A client that sends no key is charged each time.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS charges (
    id text NOT NULL PRIMARY KEY,
    amount integer NOT NULL,
    currency text NOT NULL,
    idempotency_key text UNIQUE,
    created real NOT NULL
)
"""

_FIELDS = ("id", "amount", "currency", "idempotency_key", "created")


class Provider:
    """A payment provider that keeps its charges in SQLite."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with closing(self._connect()) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(_SCHEMA)

    def charge(self, amount: int, currency: str, key: str | None) -> dict[str, Any]:
        """Charge the card, once per key."""
        new = (f"ch_{secrets.token_hex(8)}", amount, currency, key, time.time())
        with self._lock, closing(self._connect()) as db, db:
            db.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?) ON CONFLICT (idempotency_key) DO NOTHING", new)
            found = db.execute("SELECT * FROM charges WHERE id = ? OR idempotency_key = ?", (new[0], key)).fetchone()
        return dict(zip(_FIELDS, found, strict=True))

    def list_charges(self) -> list[dict[str, Any]]:
        with closing(self._connect()) as db:
            rows = db.execute("SELECT * FROM charges ORDER BY created").fetchall()
        return [dict(zip(_FIELDS, row, strict=True)) for row in rows]

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)
