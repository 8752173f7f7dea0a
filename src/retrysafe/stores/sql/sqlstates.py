"""PostgreSQL's error codes (SQLSTATE) that mean something to us, for the store and for users' transactions alike. This
file imports no driver: psycopg, asyncpg, SQLAlchemy and Django all carry the same codes."""

from __future__ import annotations

SERIALIZATION_CODES = frozenset({"40001", "40P01"})
"""Serialization failure, deadlock: the server rolled everything back, and the same statements may succeed now."""

LOCK_NOT_AVAILABLE_CODE = "55P03"
READ_ONLY_CODE = "25006"
"""A standby, or a primary that another server has taken over from."""

IN_FAILED_TRANSACTION_CODE = "25P02"
"""An earlier statement of the transaction failed, and PostgreSQL refuses everything until the rollback."""

SCHEMA_MISSING_CODES = frozenset({"42P01", "3F000", "42703"})
"""No such table, schema, column."""

_SHUTDOWN_CODES = frozenset({"57P01", "57P02", "57P03", "57P05"})
"""The server ended the connection: an administrator, a crash, a start that is not finished, an idle session."""

_CONNECTION_CLASS = "08"
_CONSTRAINT_CLASS = "23"


def is_connection_lost(code: str) -> bool:
    return code in _SHUTDOWN_CODES or code.startswith(_CONNECTION_CLASS)


def is_constraint_violation(code: str) -> bool:
    return code.startswith(_CONSTRAINT_CLASS)
