"""What is set on each of our own connections, whatever the server's defaults are.

READ COMMITTED: a plain read sees what is committed now, not what was when the transaction began, and there are no
gap locks. A short wait for rows that others hold. A strict sql_mode: what does not fit is refused, not cut.
"""

from __future__ import annotations

CHARSET = "utf8mb4"
CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 15
"""Seconds a server that is connected may say nothing before the conversation counts as broken."""

LOCK_TIMEOUT_SECONDS = 1
"""Seconds a write waits for a row that somebody else has locked (I28). The server counts in whole seconds."""

SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET SESSION innodb_lock_wait_timeout = {LOCK_TIMEOUT_SECONDS}",
    "SET SESSION sql_mode = 'TRADITIONAL'",
)
