"""A schema that does not fit: a table that is gone, and a schema that a later release made. On real servers."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import psycopg
import pymysql
import pytest

from retrysafe.cli.main import main
from retrysafe.core.keys import record_id
from retrysafe.core.ops import Lookup
from retrysafe.errors import SchemaMissing, SchemaRefused
from retrysafe.stores.diagnosis import Finding, diagnose
from retrysafe.stores.duckdb.dialect import DIALECT as DUCKDB
from retrysafe.stores.mysql.dialect import DIALECT as MYSQL
from retrysafe.stores.mysql.dialect import parse_url, upgrade
from retrysafe.stores.postgres.dialect import DIALECT as POSTGRES
from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.stores.sql.dialect import Dialect
from retrysafe.stores.sql.migrations import latest_version, made_columns
from retrysafe.stores.sql.names import build_names
from retrysafe.stores.sqlite.file import DIALECT as SQLITE

DIALECTS: dict[str, Dialect] = {
    "sqlite": SQLITE, "postgres": POSTGRES, "mysql": MYSQL, "mariadb": MYSQL, "duckdb": DUCKDB,
}  # fmt: skip
KEPT_RELEASE = Path(__file__).parents[1] / "releases/06229ac.tar.xz"
LOOKUP = Lookup(record_id("http", "n", "", "k"))


class Installation:
    """The tables of one test, and connections beside the store's own."""

    def __init__(self, store: str, server: str) -> None:
        self.store, self.server, self.prefix = store, server, f"s{uuid4().hex[:10]}"
        self.url = f"{server}{'&' if '?' in server else '?'}table={self.prefix}"
        self.latest = latest_version(DIALECTS[store], build_names(self.prefix))

    def table(self, name: str) -> str:
        return f"{self.prefix}_{name}"

    def migrate(self) -> list[str]:
        with closing(open_store(self.url)) as store:
            return store.migrate()

    def connect(self) -> Any:
        path = self.server.partition("://")[2].removeprefix("/")
        if self.store == "sqlite":
            return sqlite3.connect(path, isolation_level=None)
        if self.store == "duckdb":
            return duckdb.connect(path)
        if self.store == "postgres":
            return psycopg.connect(self.server, autocommit=True)
        return pymysql.connect(**{**parse_url(self.server).connect, "autocommit": True})

    def run(self, *statements: str) -> tuple[list[str], list[Any]]:
        """The columns and the rows of the last statement."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            if not cursor.description:
                return [], []
            return [each[0] for each in cursor.description], list(cursor.fetchall())

    def drop(self, *names: str) -> None:
        self.run(*(f"DROP TABLE {self.table(name)}" for name in names))

    def write_meta(self, name: str, value: int | None) -> None:
        meta = self.table("meta")
        self.run(f"DELETE FROM {meta} WHERE name = '{name}'")
        if value is not None:
            self.run(f"INSERT INTO {meta} (name, value) VALUES ('{name}', '{value}')")

    def read_meta(self) -> dict[str, str]:
        return dict(self.run(f"SELECT name, value FROM {self.table('meta')} WHERE name <> 'install'")[1])

    def columns(self, name: str) -> list[str]:
        return self.run(f"SELECT * FROM {self.table(name)}")[0]

    def describe(self, name: str) -> list[Any]:
        """A table with its columns and indexes."""
        table = self.table(name)
        query = {
            "sqlite": f"SELECT sql FROM sqlite_master WHERE tbl_name = '{table}' ORDER BY name",
            "postgres": f"SELECT indexdef FROM pg_indexes WHERE tablename = '{table}' ORDER BY indexname",
            "duckdb": f"SELECT sql FROM duckdb_tables() WHERE table_name = '{table}'",
        }.get(self.store, f"SHOW CREATE TABLE {table}")
        return [self.columns(name), *self.run(query)[1]]

    def find_wrong(self) -> dict[str, Finding]:
        return {one.setting: one for one in diagnose(self.url).findings if not one.fine}


@pytest.fixture(params=[pytest.param(store, marks=pytest.mark.store(store)) for store in DIALECTS])
def place(request: pytest.FixtureRequest) -> Installation:
    made = Installation(request.param, request.getfixturevalue(f"{request.param}_url"))
    made.migrate()
    return made


# A table is gone ----------------------------------------------------------------------------------


def test_a_whole_schema_is_in_order(place: Installation) -> None:
    assert not [name for name in place.find_wrong() if name.startswith(("table", "schema"))]
    assert place.migrate() == []


def test_a_lost_outbox_is_made_again_and_that_is_said(place: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    before = place.describe("outbox")
    place.drop("outbox")
    found = place.find_wrong()[place.table("outbox")]
    assert (found.value, found.limit) == ("missing", "best-effort")
    assert "retrysafe migrate" in found.fix
    assert main(["migrate", place.url]) == 0
    said = capsys.readouterr().out
    assert f"recreated {place.table('outbox')}" in said
    assert "jobs that were staged in it are gone" in said
    assert place.describe("outbox") == before
    assert place.read_meta()["version"] == str(place.latest)
    assert place.table("outbox") not in place.find_wrong()
    assert place.migrate() == []


@pytest.mark.parametrize(("name", "loss"), [("keys", "all keys are forgotten"), ("receipts", "local step")])
def test_what_keeps_effects_single_is_not_made_again_unasked(
    place: Installation, capsys: pytest.CaptureFixture[str], name: str, loss: str
) -> None:
    before = place.describe(name)
    place.drop(name, "outbox")
    assert place.find_wrong()[place.table(name)].fix
    with pytest.raises(SchemaRefused, match=loss) as refused:
        place.migrate()
    assert place.table(name) in str(refused.value)
    assert f"--recreate {name}" in str(refused.value)
    assert {place.table(name), place.table("outbox")} <= set(place.find_wrong()), "nothing was made"
    assert main(["migrate", place.url]) != 0
    capsys.readouterr()

    assert main(["migrate", place.url, "--recreate", name, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["applied"]
    assert [text.split(":")[0] for text in made] == [
        f"recreated {place.table(each)}" for each in sorted({name, "outbox"})
    ]
    assert place.describe(name) == before
    assert place.read_meta()["version"] == str(place.latest)
    assert place.migrate() == []


def test_recreate_leaves_a_table_that_is_there(place: Installation) -> None:
    place.run(f"INSERT INTO {place.table('receipts')} (run, step, result, created) VALUES ('r', 's', '', 1)")
    assert main(["migrate", place.url, "--recreate", "receipts"]) == 0
    assert len(place.run(f"SELECT * FROM {place.table('receipts')}")[1]) == 1


def test_recreate_needs_a_store_with_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "memory://", "--recreate", "keys"]) != 0
    assert "--recreate" in capsys.readouterr().err


def test_an_async_store_says_the_same(place: Installation) -> None:
    place.drop("keys")

    async def migrate() -> list[str]:
        store = open_async_store(place.url)
        try:
            return await store.migrate()
        finally:
            await store.aclose()

    with pytest.raises(SchemaRefused, match="all keys are forgotten"):
        asyncio.run(migrate())


def test_lost_bookkeeping_is_not_guessed(place: Installation) -> None:
    """MySQL and MariaDB repeat every migration: each says IF NOT EXISTS."""
    place.drop("meta")
    assert place.find_wrong()[place.table("meta")].fix
    if place.store in ("mysql", "mariadb"):
        assert len(place.migrate()) == place.latest
        return
    with pytest.raises(SchemaRefused, match=place.table("meta")):
        place.migrate()


def test_lost_keys_are_noticed_without_the_bookkeeping(place: Installation) -> None:
    place.drop("meta", "keys")
    with pytest.raises(SchemaRefused, match="all keys are forgotten"):
        place.migrate()
    if place.store in ("mysql", "mariadb"):
        assert main(["migrate", place.url, "--recreate", "keys"]) == 0
        assert place.migrate() == []


@pytest.mark.parametrize("store", ["mysql", "mariadb"])
def test_a_table_that_was_half_recreated_is_finished_by_the_next_migration(
    request: pytest.FixtureRequest, store: str
) -> None:
    """A CREATE commits by itself there: what dies between it and the ALTER leaves a lower version behind."""
    place = Installation(store, request.getfixturevalue(f"{store}_url"))
    place.migrate()
    whole = place.columns("outbox")
    place.drop("outbox")
    plan = upgrade(build_names(place.prefix))
    with closing(place.connect()) as connection:
        cursor = connection.cursor()
        sent = next(plan)
        while not sent.sql.startswith("ALTER"):
            cursor.execute(sent.sql, sent.values or None)
            sent = plan.send(list(cursor.fetchall()))
    assert place.columns("outbox") != whole
    place.migrate()
    assert place.columns("outbox") == whole


# A column is gone ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "column"), [("keys", "note"), ("keys", "advances"), ("outbox", "error")])
def test_a_lost_column_is_named_by_the_doctor_and_by_migrate(
    place: Installation, capsys: pytest.CaptureFixture[str], table: str, column: str
) -> None:
    """Requests say `retrysafe migrate`: if that said that all is well, it would lead in a circle."""
    place.run(f"ALTER TABLE {place.table(table)} DROP COLUMN {column}")
    named = f"{place.table(table)}.{column}"
    assert [name for name in place.find_wrong() if name.startswith(place.prefix)] == [named]
    assert main(["doctor", place.url]) == 1
    capsys.readouterr()
    assert main(["migrate", place.url]) == 1
    assert named in capsys.readouterr().err
    assert column not in place.columns(table), "nothing was changed"


def test_a_column_that_somebody_added_is_no_fault(place: Installation) -> None:
    place.run(f"ALTER TABLE {place.table('keys')} ADD COLUMN ours integer")
    assert place.migrate() == []
    assert not [name for name in place.find_wrong() if name.startswith(place.prefix)]


@pytest.mark.parametrize("store", DIALECTS)
def test_the_release_before_made_the_same_columns(store: str) -> None:
    """A database that it made is upgraded, and not refused: its migrations had every column that is looked for."""
    dialect, names = DIALECTS[store], build_names("p")
    folder = f"{dialect.package.replace('.', '/')}/migrations/"
    with tarfile.open(KEPT_RELEASE) as kept:
        files = [each for each in kept if folder in each.name and each.name.endswith(".sql")]
        made = " ".join(kept.extractfile(each).read().decode() for each in files)  # type: ignore[union-attr]
    for table in ("keys", "outbox", "receipts"):
        columns = made_columns(dialect, names, table, dialect.oldest_reader)
        assert len(columns) >= 4
        assert not [column for column in columns if not re.search(rf"\b{column}\W", made)]


# A schema of a later release ----------------------------------------------------------------------


@pytest.mark.parametrize("store", DIALECTS)
def test_the_mark_is_the_schema_of_the_release_before(store: str) -> None:
    dialect = DIALECTS[store]
    folder = f"{dialect.package.replace('.', '/')}/migrations/"
    with tarfile.open(KEPT_RELEASE) as kept:
        versions = [int(Path(name).name[:4]) for name in kept.getnames() if folder in name and name.endswith(".sql")]
    assert dialect.oldest_reader == max(versions)


def test_a_migration_writes_which_code_may_work_on_it(place: Installation) -> None:
    needs = str(DIALECTS[place.store].oldest_reader)
    assert place.read_meta() == {"version": str(place.latest), "oldest_reader": needs}
    place.write_meta("oldest_reader", None)  # as this version was before it had the mark
    assert place.migrate() == []
    assert place.read_meta() == {"version": str(place.latest), "oldest_reader": needs}


def test_the_next_release_is_worked_beside(place: Installation) -> None:
    """What docs/explanation/releases.md promises: also a process that migrates as it starts goes on."""
    place.write_meta("version", place.latest + 3)
    place.write_meta("oldest_reader", place.latest)
    written = place.read_meta()
    assert place.migrate() == []
    with closing(open_store(place.url)) as store:
        assert store.execute(LOOKUP).record is None
    assert place.read_meta() == written, "neither the version nor the mark is written over"
    (schema,) = (one for one in diagnose(place.url).findings if one.setting == "schema")
    assert schema.fine
    assert str(place.latest + 3) in schema.value


def test_two_releases_ahead_are_refused(place: Installation, capsys: pytest.CaptureFixture[str]) -> None:
    place.write_meta("version", place.latest + 3)
    place.write_meta("oldest_reader", place.latest + 1)
    with pytest.raises(SchemaRefused, match=rf"version {place.latest + 3}.*version {place.latest}\b.*pip install -U"):
        place.migrate()
    assert main(["migrate", place.url]) != 0
    assert "pip install -U retrysafe" in capsys.readouterr().err
    found = place.find_wrong()["schema"]
    assert (found.limit, found.fix) == ("best-effort", "pip install -U retrysafe")
    if place.store in ("sqlite", "duckdb"):  # these look when they are opened; a server is looked at by the doctor
        with closing(open_store(place.url)) as store, pytest.raises(SchemaRefused, match="pip install -U"):
            store.execute(LOOKUP)


def test_a_later_version_without_a_mark_is_not_migrated_and_named(place: Installation) -> None:
    """Every release writes the mark with its version. Nothing says whose schema this is."""
    place.write_meta("version", 9)
    place.write_meta("oldest_reader", None)
    with pytest.raises(SchemaRefused, match=r"version 9\b"):
        place.migrate()
    found = place.find_wrong()["schema"]
    assert "9" in found.value
    assert found.limit == "exactly-once-capable"
    with closing(open_store(place.url)) as store:
        assert store.execute(LOOKUP).record is None, "what runs goes on"


def test_a_table_of_a_later_schema_is_left_to_the_later_release(place: Installation) -> None:
    place.write_meta("version", place.latest + 1)
    place.write_meta("oldest_reader", place.latest)
    place.drop("outbox")
    with pytest.raises(SchemaRefused, match="with the release that made this schema"):
        place.migrate()


def test_an_older_schema_is_named_by_the_doctor(place: Installation) -> None:
    place.write_meta("version", place.latest - 1)
    if place.store in ("sqlite", "duckdb"):
        assert "schema" not in place.find_wrong(), "the next process that opens it migrates it"
    else:
        assert place.find_wrong()["schema"].fix == "retrysafe migrate URL"


def test_tables_that_were_never_made_are_as_before(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = Installation("postgres", request.getfixturevalue("postgres_url"))
    assert "table" in place.find_wrong()
    assert place.table("outbox") not in place.find_wrong()
    with closing(open_store(place.url)) as store, pytest.raises(SchemaMissing):
        store.execute(LOOKUP)
    assert "schema" not in {one.setting for one in diagnose(f"sqlite:///{tmp_path}/new.db").findings}
