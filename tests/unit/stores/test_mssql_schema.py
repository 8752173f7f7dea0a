"""SQL Server's schema without a server: which statements `migrate` and the doctor send when tables are lost.

`Catalogue` knows which tables there are and what the meta table holds, and refuses statements on a table that is not
there. That the statements are T-SQL is checked in test_mssql.py."""

from __future__ import annotations

import re
from typing import Any

import pytest

from retrysafe.errors import SchemaRefused, StoreUnavailable
from retrysafe.stores.base import follow
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import build_names
from retrysafe.stores.sql.schema_state import RecreatesTables
from retrysafe_mssql import backend, doctor, schema
from retrysafe_mssql.dialect import DIALECT, bracket_names
from retrysafe_mssql.protocol import plan_batches

NAMES = build_names("shop_safe", "app")
TABLES = {table: getattr(bracket_names(NAMES), table) for table in ("keys", "outbox", "receipts", "meta")}
LATEST = schema.migrations.latest_version(DIALECT, NAMES)


class Catalogue:
    """The tables of one database, as far as our statements can see them."""

    def __init__(self) -> None:
        self.tables: set[str] = set()
        self.meta: dict[str, str] = {}
        self.made: list[str] = []
        self.lock_reply = 0

    def send(self, statement: Statement) -> list[Any]:
        return list(follow(plan_batches(statement), lambda batch: self.answer(batch, dict(statement.values))))

    def answer(self, sql: str, values: dict[str, Any]) -> list[Any]:
        if "sp_getapplock" in sql:
            return [(self.lock_reply,)]
        if asked := re.fullmatch(r"SELECT 1 WHERE OBJECT_ID\('(\S+)', 'U'\) IS NOT NULL", sql):
            return [(1,)] if asked[1] in self.tables else []
        if made := re.match(r"CREATE TABLE (\S+)", sql):
            assert made[1] not in self.tables, f"{made[1]} exists"
            self.tables.add(made[1])
            self.made.append(made[1])
            return []
        used = re.search(r"(?:ALTER TABLE|INDEX \S+ ON|UPDATE|INTO|FROM) (\S+)", sql)
        assert used, sql
        assert used[1] in self.tables, f"there is no {used[1]}"
        return self.answer_meta(sql, values) if used[1] == TABLES["meta"] else []

    def answer_meta(self, sql: str, values: dict[str, Any]) -> list[Any]:
        if put := re.match(r"UPDATE \S+ SET value = '(\d+)' WHERE name = '(\w+)'", sql):
            self.meta.update({put[2]: put[1]} if put[2] in self.meta else {})
        elif put := re.search(r"SELECT '(\w+)', (?:'(\d+)'|%\(value\)s) WHERE NOT EXISTS .* name = '(\w+)'\)", sql):
            assert put[1] == put[3]
            self.meta.setdefault(put[1], put[2] or values["value"])
        else:
            return [(name, value) for name, value in self.meta.items() if f"'{name}'" in sql]
        return []

    def migrate(self, *recreate: str) -> list[str]:
        self.made.clear()
        return follow(schema.upgrade(NAMES, recreate), self.send)

    def drop(self, table: str) -> None:
        self.tables.remove(TABLES[table])
        if table == "meta":
            self.meta.clear()


@pytest.fixture
def migrated() -> Catalogue:
    found = Catalogue()
    assert [name[:4] for name in found.migrate()] == [f"{number:04}" for number in range(1, LATEST + 1)]
    return found


def findings(catalogue: Catalogue) -> dict[str, str]:
    """What the doctor finds wrong with the schema: the setting, and the fix."""
    answers: list[list[Any]] = []

    class Cursor:
        description: Any = ()

        def execute(self, sql: str) -> None:
            answers.append(catalogue.answer(sql, {}))
            self.description = (("value",),) if answers[-1] else ()

        def fetchall(self) -> list[Any]:
            return answers[-1]

        def nextset(self) -> bool:
            return False

    return {each.setting: each.fix for each in doctor.read_schema(Cursor(), NAMES) if not each.fine}


def test_the_first_migration_makes_everything_and_the_second_nothing(migrated: Catalogue) -> None:
    assert migrated.tables == set(TABLES.values())
    before = dict(migrated.meta)
    assert set(before) == {"version", "oldest_reader", "install"}
    assert (before["version"], before["oldest_reader"]) == (str(LATEST), str(DIALECT.oldest_reader))
    assert (migrated.migrate(), migrated.made, migrated.meta) == ([], [], before)
    assert findings(migrated) == {}


def test_a_schema_of_the_release_before_is_marked_and_keeps_its_id(migrated: Catalogue) -> None:
    """It has no `oldest_reader`."""
    del migrated.meta["oldest_reader"]
    before = dict(migrated.meta)
    assert migrated.migrate() == []
    assert migrated.meta == {**before, "oldest_reader": str(DIALECT.oldest_reader)}


@pytest.mark.parametrize("table", ["keys", "receipts"])
def test_a_lost_table_is_refused_until_somebody_accepts_the_loss(migrated: Catalogue, table: str) -> None:
    migrated.drop(table)
    with pytest.raises(SchemaRefused, match=rf"missing: shop_safe_{table}\..*--recreate {table}"):
        migrated.migrate()
    assert migrated.made == []
    (told,) = migrated.migrate(table)
    assert told.startswith(f"recreated shop_safe_{table}: it was missing")
    assert migrated.made == [TABLES[table]]
    assert (migrated.meta["version"], migrated.migrate()) == (str(LATEST), [])


def test_a_lost_outbox_is_made_again(migrated: Catalogue) -> None:
    migrated.drop("outbox")
    (told,) = migrated.migrate()
    assert told.startswith("recreated shop_safe_outbox")
    assert migrated.tables == set(TABLES.values())


def test_lost_bookkeeping_is_refused(migrated: Catalogue) -> None:
    """Only `meta` is made, and the transaction of the store rolls that back."""
    migrated.drop("meta")
    with pytest.raises(SchemaRefused, match="missing: shop_safe_meta"):
        migrated.migrate()
    assert migrated.made == [TABLES["meta"]]


@pytest.mark.parametrize("table", ["keys", "receipts", "outbox"])
def test_the_doctor_reports_a_lost_table(migrated: Catalogue, table: str) -> None:
    migrated.drop(table)
    (setting,) = found = findings(migrated)
    assert setting == f"shop_safe_{table}"
    assert "retrysafe migrate URL" in found[setting]


def test_the_doctor_says_nothing_of_an_empty_database() -> None:
    assert findings(Catalogue()) == {}


def test_a_schema_that_is_too_far_ahead_is_refused_and_reported(migrated: Catalogue) -> None:
    migrated.meta.update({"version": str(LATEST + 2), "oldest_reader": str(LATEST + 1)})
    with pytest.raises(SchemaRefused, match="more than one release ahead"):
        migrated.migrate()
    assert findings(migrated) == {"schema": "pip install -U retrysafe"}


def test_an_older_schema_is_reported(migrated: Catalogue) -> None:
    migrated.meta["version"] = "2"
    assert findings(migrated) == {"schema": "retrysafe migrate URL"}


def test_another_migration_is_under_way() -> None:
    busy = Catalogue()
    busy.lock_reply = -1
    with pytest.raises(StoreUnavailable, match="another migration"):
        busy.migrate()


def test_the_command_line_offers_to_make_lost_tables_again() -> None:
    store = backend.open("mssql://sa:secret@db.example/shop")  # connects when it is used
    assert isinstance(store, RecreatesTables)
