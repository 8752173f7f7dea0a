"""The store's own schema, applied through Django's connection: `manage.py migrate` is enough."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from retrysafe.errors import UsageError
from retrysafe.stores.base import follow
from retrysafe.stores.postgres.dialect import DIALECT as POSTGRES
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import Names, names
from retrysafe.stores.sqlite.file import DIALECT as SQLITE
from retrysafe.web.django import conf

# Django's cursor takes one parameter style on every database.
DIALECTS: dict[str, Dialect] = {"postgresql": POSTGRES, "sqlite": replace(SQLITE, parameter="%({})s")}

_TABLE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\S+)")


def apply(apps: Any, schema_editor: Any) -> None:
    """Create or upgrade. What `retrysafe migrate` or the store itself has created is left as it is."""
    connection = schema_editor.connection
    if wanted_on(connection):
        with connection.cursor() as cursor:
            follow(migrations.upgrade(DIALECTS[connection.vendor], names()), lambda sent: _send(cursor, sent))


def unapply(version: int) -> Callable[[Any, Any], None]:
    """Back to the version before: drop what this one created, and with it what is remembered there."""

    def drop(apps: Any, schema_editor: Any) -> None:
        connection = schema_editor.connection
        if not wanted_on(connection):
            return
        of, dialect = names(), DIALECTS[connection.vendor]
        with connection.cursor() as cursor:
            for table in reversed(tables(dialect, of, version)):
                cursor.execute(f"DROP TABLE IF EXISTS {table}")
            if version > 1:
                cursor.execute(f"UPDATE {of.meta} SET value = %s WHERE name = 'version'", [str(version - 1)])

    return drop


def wanted_on(connection: Any) -> bool:
    """Whether this is the database of RETRYSAFE. Where the records are elsewhere, one we cannot use is let be."""
    if connection.alias != conf.database():
        return False
    if connection.vendor in DIALECTS:
        return True
    if conf.given().get("URL") or conf.given().get("SAFE"):
        return False
    raise UsageError(
        f"DATABASES[{connection.alias!r}] is {connection.vendor}, for which there is no store; set RETRYSAFE['URL']"
    )


def tables(dialect: Dialect, of: Names, since: int = 1) -> list[str]:
    """What the migrations from this version on create."""
    created = [
        match.group(1)
        for migration in migrations.load(dialect, of)
        for statement in migration.statements
        if migration.version >= since and (match := _TABLE.match(statement))
    ]
    return [of.meta, *created] if since == 1 else created


def missing(connection: Any) -> list[str]:
    """Which tables are not there."""
    there = set(connection.introspection.table_names())
    wanted = [table.strip('"') for table in tables(DIALECTS[connection.vendor], names())]
    return [table for table in wanted if table not in there]


def _send(cursor: Any, statement: Statement) -> list[Any]:
    cursor.execute(statement.sql, statement.values or None)
    return cursor.fetchall() if cursor.description is not None else []
