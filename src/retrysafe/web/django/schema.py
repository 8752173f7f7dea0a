"""Applies the store's own schema through Django's connection, so that `manage.py migrate` is enough."""

from __future__ import annotations

from typing import Any

from django.db import router  # type: ignore[import-untyped]  # Django ships no types
from django.db.migrations.operations.base import Operation  # type: ignore[import-untyped]

from retrysafe.errors import UsageError
from retrysafe.stores.base import Plan, follow
from retrysafe.stores.mysql import dialect as mysql
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import build_names
from retrysafe.transactions.base import MYSQL, PSYCOPG, SQLITE_FORMAT
from retrysafe.transactions.on_django import DjangoTx
from retrysafe.web.django import conf

DIALECTS: dict[str, Dialect] = {"postgresql": PSYCOPG, "sqlite": SQLITE_FORMAT, "mysql": MYSQL}
"""By Django's name of the database (`connection.vendor`). MariaDB is `mysql`, too."""


class StoreVersion(Operation):  # type: ignore[misc]  # untyped base
    """One migration of the store. It does nothing if `retrysafe migrate` or the store itself has applied it.

    `atomic` stays False: the migration itself is in a transaction if the database can roll back a CREATE.
    """

    def __init__(self, version: int) -> None:
        self.version = version

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The tables belong to no model."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        if not is_store_database(connection, app_label):
            return
        if schema_editor.collect_sql:  # `sqlmigrate`: there is no database to inspect
            for text in migrations.forward_statements(find_dialect(connection), build_names(), self.version):
                schema_editor.execute(text, None)
        else:
            follow(plan_upgrade(connection, self.version), DjangoTx(connection.alias).send)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        if is_store_database(connection, app_label):
            for text in migrations.backward_statements(find_dialect(connection), build_names(), self.version):
                schema_editor.execute(text, None)

    def describe(self) -> str:
        return f"Tables of the idempotency keys, version {self.version}"


def plan_upgrade(connection: Any, to: int) -> Plan[Statement, list[str]]:
    if connection.vendor == "mysql":
        return mysql.upgrade(build_names(), to)
    return migrations.upgrade(DIALECTS[connection.vendor], build_names(), to)


def find_dialect(connection: Any) -> Dialect:
    """The dialect of a connection. MySQL and MariaDB have different names for their collations."""
    if connection.vendor == "mysql":
        return mysql.dialect_of(connection.mysql_server_info)
    return DIALECTS[connection.vendor]


def is_store_database(connection: Any, app_label: str) -> bool:
    """True if this is the database of RETRYSAFE. An unsupported one is ignored if the records are elsewhere."""
    if connection.alias != conf.database_alias() or not router.allow_migrate(connection.alias, app_label):
        return False
    if connection.vendor in DIALECTS:
        return True
    if conf.read_setting().get("URL") or conf.read_setting().get("SAFE"):
        return False
    raise UsageError(
        f"DATABASES[{connection.alias!r}] is {connection.vendor}, for which there is no store; set RETRYSAFE['URL']"
    )


def find_missing_tables(connection: Any) -> list[str]:
    """The missing tables, and the missing columns of existing tables."""
    existing, dialect = set(connection.introspection.table_names()), DIALECTS[connection.vendor]
    versions = range(1, migrations.latest_version(dialect, build_names()) + 1)
    created = [
        table.strip('"`')
        for version in versions
        for table in migrations.created_tables(dialect, build_names(), version)
    ]
    added = [
        (table.strip('"`'), column)
        for version in versions
        for table, column in migrations.added_columns(dialect, build_names(), version)
    ]
    with connection.cursor() as cursor:
        known = {
            table: {each.name for each in connection.introspection.get_table_description(cursor, table)}
            for table in {table for table, _ in added} & existing
        }
    missing_columns = [f"{table}.{column}" for table, column in added if table in known and column not in known[table]]
    return [table for table in created if table not in existing] + missing_columns
