"""The demo's own account book: the payments it made."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS payments (
    id text NOT NULL PRIMARY KEY,
    account text NOT NULL,
    amount integer NOT NULL,
    currency text NOT NULL,
    charge text NOT NULL
)
"""

_FIELDS = ("id", "account", "amount", "currency", "charge")


class Payments:
    """Payments by id, each seen only by the account that made it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self._connect()) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(_SCHEMA)

    def add(self, payment: dict[str, Any]) -> None:
        """Adding the same payment again changes nothing: its id says which one it is."""
        with closing(self._connect()) as db, db:
            row = [payment[field] for field in _FIELDS]
            db.execute("INSERT INTO payments VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING", row)

    def find(self, payment_id: str, account: str) -> dict[str, Any] | None:
        with closing(self._connect()) as db:
            query = "SELECT * FROM payments WHERE id = ? AND account = ?"
            found = db.execute(query, (payment_id, account)).fetchone()
        return dict(zip(_FIELDS, found, strict=True)) if found else None

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=30)
