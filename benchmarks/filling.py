"""A PostgreSQL store that has been in use for long: many settled records, loaded in bulk."""

from __future__ import annotations

import psycopg

from retrysafe.stores.registry import open_store
from retrysafe.stores.sql import rows
from retrysafe.stores.sql.names import build_names

NEVER = "9007199254740991"
LONG_AGO = "n"  # each its own microsecond: a reaper that meets a million equal ones is another experiment

FILL = """
INSERT INTO {keys} ({columns})
SELECT sha256(('{salt}' || n)::bytea), 'default', 'http', 'account-7', 'key-' || n, 'POST /payments',
    'json1:33:' || repeat('ab', 32), 'completed', 1, '\\x00', '\\x00', 0, 'uncertain', '', '', '', 201, '',
    repeat('x', 200)::bytea, '', '', 0, 0, 0, {expires}, 86400000000, 0, ''
FROM generate_series(1, {rows}) AS n
"""


def filled(url: str, table: str, size: int, expires: str) -> None:
    """The indexes are dropped for the load and built again after it: ten million rows in minutes."""
    open_store(f"{url}?table={table}").migrate()
    keys = build_names(table).keys
    text = FILL.format(keys=keys, columns=", ".join(rows.COLUMNS), salt=table, rows=size, expires=expires)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SET maintenance_work_mem = '512MB'")
        again = _without_indexes(db, keys)
        db.execute(text.encode())
        for statement in again:
            db.execute(statement.encode())
        db.execute(f"VACUUM (ANALYZE, FREEZE) {keys}".encode())
        db.execute("CHECKPOINT")  # or it comes in the middle of somebody's slice


def _without_indexes(db: psycopg.Connection, keys: str) -> list[str]:
    """Drop them; the statements that make them again."""
    constraints = db.execute(
        "SELECT quote_ident(conname), pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid = %s::regclass AND contype IN ('p', 'u')",
        [keys],
    ).fetchall()
    again = []
    for name, definition in constraints:
        db.execute(f"ALTER TABLE {keys} DROP CONSTRAINT {name}".encode())
        again.append(f"ALTER TABLE {keys} ADD CONSTRAINT {name} {definition}")
    indexes = db.execute(
        "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = %s::regclass",
        [keys],
    ).fetchall()
    for name, definition in indexes:
        db.execute(f"DROP INDEX {name}".encode())
        again.append(definition)
    return again
