"""The patterns of one_table.py where they are decided: on PostgreSQL, with callers that really come at once.

A unique constraint is the only judge here. What differs is what the loser of a race is told, and what that costs:

look_then_insert     no constraint: both insert. What everybody writes first
single_table         the key is a column of the row itself; ON CONFLICT DO NOTHING, then read the winner's row
nested_write         key, payment and its lines are born in one statement; all of it or nothing
two_step_lookup      look first, to save replays an insert; the insert still decides
violation_fallback   insert, be refused (23505), go back to a savepoint, read: for inserts an ORM makes
upsert               DO UPDATE: everybody is told "yes", and the last one wins. For states, never for acts
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import errors

Db = psycopg.Connection[Any]
Pause = Callable[[], object]

SCHEMA = """
CREATE TABLE unguarded (id serial PRIMARY KEY, account text, key text, cents int);
CREATE TABLE payments (id serial PRIMARY KEY, account text, key text, cents int, UNIQUE (account, key));
CREATE TABLE keys (account text, key text, cents int, payment int, PRIMARY KEY (account, key));
CREATE TABLE lines (payment int, what text);
"""


class OtherRequest(Exception):
    """The key was used before, for something else."""


class TooEarly(Exception):
    """The winner is not in our snapshot: begin a new transaction and ask again."""


def look_then_insert(db: Db, account: str, key: str, cents: int, between: Pause = lambda: None) -> int:
    """Two callers may both see nothing. `between` is where the other one comes."""
    with db.transaction():
        row = db.execute("SELECT id FROM unguarded WHERE account = %s AND key = %s", (account, key)).fetchone()
        if row:
            return int(row[0])
        between()
        made = db.execute(
            "INSERT INTO unguarded (account, key, cents) VALUES (%s, %s, %s) RETURNING id", (account, key, cents)
        )
        return number(made.fetchone())


def single_table(db: Db, account: str, key: str, cents: int) -> int:
    """One statement when it is new, two for a retry. The insert waits for a rival that has not committed yet; the
    reading is a statement of its own because at READ COMMITTED it then sees what the insert has just lost to."""
    with db.transaction():
        made = db.execute(
            "INSERT INTO payments (account, key, cents) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING RETURNING id",
            (account, key, cents),
        ).fetchone()
        return number(made) if made else winner(db, account, key, cents)


def winner(db: Db, account: str, key: str, cents: int) -> int:
    """The row that was there first, if it is for the same thing."""
    row = db.execute("SELECT id, cents FROM payments WHERE account = %s AND key = %s", (account, key)).fetchone()
    if row is None:  # refused by a row we cannot see: the transaction is REPEATABLE READ or stricter
        raise TooEarly(key)
    if row[1] != cents:
        raise OtherRequest(key)
    return int(row[0])


NESTED = """
WITH born AS (
    INSERT INTO keys (account, key, cents, payment)
    VALUES (%(account)s, %(key)s, %(cents)s, nextval('payments_id_seq'))
    ON CONFLICT DO NOTHING RETURNING payment
), paid AS (
    INSERT INTO payments (id, account, key, cents)
    SELECT payment, %(account)s, %(key)s, %(cents)s FROM born RETURNING id
), lined AS (
    INSERT INTO lines (payment, what) SELECT id, unnest(%(what)s::text[]) FROM paid
)
SELECT id FROM paid
"""


def nested_write(db: Db, account: str, key: str, cents: int, what: list[str]) -> int:
    """Parent, children and key in one statement: a loser has written nothing, without a transaction of its own."""
    values = {"account": account, "key": key, "cents": cents, "what": what}
    with db.transaction():
        made = db.execute(NESTED, values).fetchone()
        return number(made) if made else winner(db, account, key, cents)


def two_step_lookup(db: Db, account: str, key: str, cents: int, between: Pause = lambda: None) -> int:
    """The look decides nothing: it only saves a retry that comes later the insert, and the number it would burn."""
    row = db.execute("SELECT 1 FROM payments WHERE account = %s AND key = %s", (account, key)).fetchone()
    if row:
        return winner(db, account, key, cents)
    between()
    return single_table(db, account, key, cents)


def violation_fallback(db: Db, account: str, key: str, cents: int, between: Pause = lambda: None) -> int:
    """For inserts that somebody else writes, such as an ORM. A refused statement spoils a PostgreSQL transaction, so
    the insert has a savepoint of its own; without it the reading would fail with "transaction is aborted"."""
    with db.transaction():
        between()
        try:
            with db.transaction():  # a savepoint
                made = db.execute(
                    "INSERT INTO payments (account, key, cents) VALUES (%s, %s, %s) RETURNING id", (account, key, cents)
                )
                return number(made.fetchone())
        except errors.UniqueViolation:
            return winner(db, account, key, cents)


def upsert(db: Db, account: str, key: str, cents: int) -> int:
    """Right for "the address is now …". For "pay …" it hides that two callers asked for different things."""
    with db.transaction():
        made = db.execute(
            "INSERT INTO payments (account, key, cents) VALUES (%s, %s, %s) "
            "ON CONFLICT (account, key) DO UPDATE SET cents = excluded.cents RETURNING id",
            (account, key, cents),
        )
        return number(made.fetchone())


def number(row: Any) -> int:
    return int(row[0])
