"""Single-table idempotency, the nested write, the two-step lookup, and unique constraint against upsert: what a
database can do by itself, and where each of them ends.
"""

from __future__ import annotations

import sqlite3
from typing import Any

SCHEMA = """
CREATE TABLE payments (id INTEGER PRIMARY KEY, account TEXT, key TEXT, cents INTEGER, UNIQUE (account, key));
CREATE TABLE balances (account TEXT PRIMARY KEY, cents INTEGER);
"""


def open_book() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.executescript(SCHEMA)
    return db


class OtherRequest(Exception):
    """The key was used before, for something else."""


def nested_write(db: sqlite3.Connection, account: str, key: str, cents: int) -> int:
    """The domain row is born with its key: no second table, and the unique constraint is the judge.

    The conflict is not an error but the answer: read the row and compare. Good when the row *is* the answer.
    """
    try:
        made = db.execute("INSERT INTO payments (account, key, cents) VALUES (?, ?, ?)", (account, key, cents))
        return int(made.lastrowid or 0)
    except sqlite3.IntegrityError:
        found, stored = db.execute(
            "SELECT id, cents FROM payments WHERE account = ? AND key = ?", (account, key)
        ).fetchone()
        if stored != cents:
            raise OtherRequest(key) from None
        return int(found)


def two_step_lookup(db: sqlite3.Connection, account: str, key: str, cents: int) -> int:
    """Look first, then insert: saves a failed insert for replays. The look decides nothing: two callers may both see
    no row, so the insert must still be able to lose."""
    row = db.execute("SELECT id FROM payments WHERE account = ? AND key = ?", (account, key)).fetchone()
    return int(row[0]) if row else nested_write(db, account, key, cents)


def upsert(db: sqlite3.Connection, account: str, key: str, cents: int) -> int:
    """`ON CONFLICT DO UPDATE` makes the row look right and hides that somebody asked for something else: the second
    request wins. Use it for state ("the address is now …"), never for acts ("pay …")."""
    text = (
        "INSERT INTO payments (account, key, cents) VALUES (?, ?, ?) "
        "ON CONFLICT (account, key) DO UPDATE SET cents = excluded.cents RETURNING id"
    )
    return int(db.execute(text, (account, key, cents)).fetchone()[0])


def act_once(db: sqlite3.Connection, account: str, key: str, cents: int) -> int:
    """The act and its key in one transaction: a retry that loses the insert moves no money."""
    db.execute("BEGIN IMMEDIATE")
    try:
        before = payments_of(db, account)
        number = nested_write(db, account, key, cents)
        if payments_of(db, account) > before:
            db.execute(
                "INSERT INTO balances VALUES (?, ?) ON CONFLICT (account) DO UPDATE SET cents = cents + excluded.cents",
                (account, cents),
            )
        db.execute("COMMIT")
        return number
    except BaseException:
        db.execute("ROLLBACK")
        raise


def payments_of(db: sqlite3.Connection, account: str) -> int:
    return int(db.execute("SELECT count(*) FROM payments WHERE account = ?", (account,)).fetchone()[0])


def balance(db: sqlite3.Connection, account: str) -> Any:
    return (db.execute("SELECT cents FROM balances WHERE account = ?", (account,)).fetchone() or (0,))[0]
