"""What is set on each of our own connections, whatever the server's defaults are.

READ COMMITTED, by locks or by versions (READ_COMMITTED_SNAPSHOT), as the database is set: every write asks its
question of the row it has locked, so both are right. A short wait for rows that others hold. XACT_ABORT off: "that id
is there already" is an answer here, and must not take the transaction with it.
"""

from __future__ import annotations

CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 15
"""Seconds a server that is connected may say nothing before the conversation counts as broken."""

LOCK_TIMEOUT_MS = 1000
"""Milliseconds a statement waits for a row that somebody else has locked (I28)."""

SETTINGS = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET LOCK_TIMEOUT {LOCK_TIMEOUT_MS}",
    "SET XACT_ABORT OFF",
    "SET NOCOUNT ON",
)
