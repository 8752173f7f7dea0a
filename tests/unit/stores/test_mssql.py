"""SQL Server without a server: every statement that can be sent is T-SQL to a parser, and what the server's numbers
mean. Whether it holds on a real one is asked by tests/stores/test_mssql_server.py, when there is one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymssql
import pytest
import sqlglot
from sqlglot import exp

from retrysafe.core.backlog import Backlog
from retrysafe.core.jobs import TakeJobs
from retrysafe.core.ops import List
from retrysafe.core.states import State
from retrysafe.errors import SchemaMissing, StoreError, StoreUnavailable, StoreUnclear, StoreURLError
from retrysafe.stores.base import BatchRefused, follow
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import TableNames, build_names
from retrysafe.stores.sql.plans import LockNotAvailable, SqlPlans
from retrysafe.stores.sql.retrying import RetryNow
from retrysafe.testing.builders import claim, complete
from retrysafe.transactions import sources
from retrysafe.transactions.failures import ErrorClass, classify_error, find_error_code
from retrysafe_mssql import backend, doctor, on_pymssql, schema
from retrysafe_mssql.dialect import CLOCK_DECLARATION, DIALECT, expand_least_greatest, parse_url
from retrysafe_mssql.errors import translate_error, unreachable_error
from retrysafe_mssql.pool import SETTINGS
from retrysafe_mssql.protocol import BEGIN, COMMIT, ROLLBACK, error_number, plan_batches, split_batches
from retrysafe_mssql.store import MssqlStore

URL = "mssql://sa:secret@db.example/shop"
NAMES = build_names("shop_safe", "app")
TEXTS = DIALECT.load(NAMES)
NEVER_SENT = {"insert"}
"""Another dialect's words for what insert_or_read does here; `test_a_claim_is_insert_or_read` shows that."""
PARTS = {"backlog_due_seen", "backlog_open_seen"}
"""Parts of the statements of a bounded backlog, which `bounded_backlog` gives whole."""

WHOLE = List(namespace="n", kind="k", scope="s", state=State.CLAIMED, lapsed=True, cursor="00", limit=3, now=0)


TAKING = {
    "everything": TakeJobs(1, b"t", 1, 0, "n"),
    "lane": TakeJobs(1, b"t", 1, 0, "n", ("a", "b"), others=False, left=True, unnamed=True),
    "others": TakeJobs(1, b"t", 1, 0, "n", ("a",)),
}


def bounded_backlog() -> Iterator[tuple[str, str]]:
    """What a backlog of one application sends that examines a bounded number of records."""
    plan = SqlPlans(DIALECT, NAMES).plan_operation(Backlog("n", examine=5))
    yield "backlog-bounded", next(plan).sql
    yield "backlog_reapable-bounded", plan.send([]).sql


def everything() -> Iterator[tuple[str, str]]:
    """Every batch that can be sent, by name."""
    for name, text in sorted(TEXTS.items()):
        if name not in NEVER_SENT | PARTS | {"list", "list_lapsed", "job_take"}:
            yield from ((f"{name}-{place}", batch) for place, batch in enumerate(split_batches(text)))
    for name, op in {"everything": List(now=0), "filtered": WHOLE, "resting": List("n", resting=True, now=0)}.items():
        yield f"list-{name}", split_batches(next(SqlPlans(DIALECT, NAMES).plan_operation(op)).sql)[0]
    for name, taking in TAKING.items():
        yield f"job_take-{name}", split_batches(next(SqlPlans(DIALECT, NAMES).plan_operation(taking)).sql)[0]
    for name, text in bounded_backlog():
        yield from ((f"{name}-{place}", batch) for place, batch in enumerate(split_batches(text)))
    plan, replies = schema.upgrade(NAMES), iter([[(0,)], []])
    sent = next(plan)
    for number in range(99):
        yield from ((f"migration-{number}-{place}", batch) for place, batch in enumerate(split_batches(sent.sql)))
        try:
            sent = plan.send(next(replies, []))
        except StopIteration:
            break
    for number, setting in enumerate(SETTINGS):
        yield f"setting-{number}", setting
    for statement in (BEGIN, COMMIT, ROLLBACK):
        yield statement.sql, statement.sql
    yield from {
        "doctor": doctor.SETTINGS_QUERY,
        "doctor-table": doctor.TABLE_QUERY,
        "doctor-replicas": doctor.REPLICAS_QUERY,
    }.items()
    yield "trancount", "SELECT @@TRANCOUNT"


STATEMENTS = dict(everything())


def parsed(batch: str) -> list[exp.Expression]:
    """As T-SQL. A bound value stands where a variable could."""
    found = sqlglot.parse(re.sub(r"%\((\w+)\)s", r"@\1", batch), dialect="tsql", error_level=sqlglot.ErrorLevel.RAISE)
    return [each for each in found if each is not None]


UNDERSTOOD = (
    exp.Select, exp.Insert, exp.Update, exp.Delete, exp.Create, exp.Declare, exp.Execute, exp.Set, exp.Transaction,
    exp.Commit, exp.Alter, exp.Union,
)  # fmt: skip
ONLY_WORDS = {ROLLBACK.sql}
"""What the parser takes as it is, without looking into it."""


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_is_t_sql(name: str) -> None:
    found = parsed(STATEMENTS[name])
    assert found
    if STATEMENTS[name] not in ONLY_WORDS:
        assert [type(each).__name__ for each in found if not isinstance(each, UNDERSTOOD)] == []


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_has_another_dialects_words(name: str) -> None:
    text = STATEMENTS[name]
    words = r"\b(RETURNING|ON CONFLICT|LIMIT|MERGE|LEAST|GREATEST|FILTER|now\(\))\b"
    assert re.findall(words, re.sub(r"%\(\w+\)s", "", text), re.IGNORECASE) == []
    assert re.findall(r"[{}\"`]", text) == [], "a word was not filled in, or a name is not bracketed"
    assert "%" not in re.sub(r"%\(\w+\)s", "", text), "the driver reads % as the beginning of a value"


@pytest.mark.parametrize(("name", "text"), list(bounded_backlog()))
def test_a_bounded_backlog_reads_a_part_of_the_table(name: str, text: str) -> None:
    assert "TOP (%(examine)s)" in text
    assert ") AS seen" in text
    assert text.count("[app].[shop_safe_keys]") == 1, "the bound stands where the table stood"
    declared = text.rfind("DECLARE")
    assert declared <= 0, "a part brought a declaration of its own"


def test_there_are_statements_of_every_kind() -> None:
    kinds = {type(each) for text in STATEMENTS.values() for each in parsed(text)}
    assert kinds >= {exp.Select, exp.Insert, exp.Update, exp.Delete, exp.Create}
    migrated = [text for name, text in STATEMENTS.items() if name.startswith("migration")]
    for migration in migrations.load_migrations(DIALECT, NAMES):
        assert set(migration.statements) <= set(migrated)


def test_the_printed_schema_is_t_sql() -> None:
    printed = backend.schema(f"{URL}?table=shop_safe&schema=app")
    kinds = [type(each) for each in parsed(printed)]
    assert set(kinds[:-1]) == {exp.Create, exp.Alter}
    assert kinds[-1] is exp.Insert
    assert "[app].[shop_safe_keys]" in printed


FENCED = (
    "advance",
    "complete",
    "forget",
    "release",
    "renew",
    "resolve_completed",
    "resolve_released",
    "suspect",
    "withdraw",
)


@pytest.mark.parametrize("name", FENCED)
def test_a_fenced_write_says_what_it_changed_and_asks_for_the_fence(name: str) -> None:
    update = parsed(split_batches(TEXTS[name])[0])[-1]
    assert isinstance(update, exp.Update)
    assert update.args["returning"] is not None
    asked = {each.this.name for each in update.args["where"].find_all(exp.EQ) if isinstance(each.this, exp.Column)}
    assert asked >= {"id", "attempt", "token"}


def test_a_claim_is_insert_or_read() -> None:
    """Insert and catch 2601 or 2627; then read. Never MERGE, never a read before."""
    store = SqlPlans(DIALECT, NAMES)
    first = next(store.plan_operation(claim("k", now=0)))
    insert, read = split_batches(first.sql)
    assert "/* or nothing */" in insert
    assert [type(each) for each in parsed(insert)] == [exp.Declare, exp.Insert]
    assert [type(each) for each in parsed(read)] == [exp.Declare, exp.Select]


def test_two_become_one() -> None:
    assert expand_least_greatest("{least}(a, b)") == "IIF(a < b, a, b)"
    assert (
        expand_least_greatest("{greatest}({least}(a, f(b, c)), d)")
        == "IIF(IIF(a < f(b, c), a, f(b, c)) > d, IIF(a < f(b, c), a, f(b, c)), d)"
    )
    with pytest.raises(ValueError, match="not closed"):
        expand_least_greatest("{least}(a, b")


def test_the_clock_is_read_once_for_a_batch() -> None:
    for name, text in STATEMENTS.items():
        assert text.count("SYSUTCDATETIME") == ("@now" in text), name
        assert text.startswith(CLOCK_DECLARATION) == ("@now" in text), name


# What the numbers mean ----------------------------------------------------------------------------


def said(number: int, kind: type[Exception] = pymssql.OperationalError) -> Exception:
    return kind((number, b"it says no\nDB-Lib error message"))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1205, RetryNow),
        (3960, RetryNow),
        (1222, LockNotAvailable),
        (208, SchemaMissing),
        (20003, StoreUnclear),
        (20047, StoreUnclear),
        (6005, StoreUnclear),
        (3906, StoreUnavailable),
        (9002, StoreUnavailable),
        (547, StoreError),
    ],
)
def test_a_number_is_read(number: int, expected: type[Exception]) -> None:
    found = translate_error(said(number), URL)
    assert type(found) is expected
    assert "it says no" in str(found)
    assert "secret" not in str(found)


def test_numbers_are_found_wherever_they_stand() -> None:
    assert error_number(pymssql.OperationalError(1205, "deadlock")) == 1205
    wrapped = RuntimeError("x")
    wrapped.__cause__ = said(2627, pymssql.IntegrityError)
    assert error_number(wrapped) == 2627
    assert error_number(ValueError(2627)) is None, "somebody else's number"
    assert type(translate_error(pymssql.InterfaceError("Connection is closed."), URL)) is StoreUnclear
    assert isinstance(translate_error(said(1222), URL, batch=True), BatchRefused)
    assert "is it up" in str(unreachable_error(said(20009)))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1205, ErrorClass.RETRYABLE),
        (3960, ErrorClass.RETRYABLE),
        (1222, ErrorClass.RETRYABLE),
        (208, ErrorClass.SCHEMA_MISSING),
        (20047, ErrorClass.CONNECTION_LOST),
        (2627, ErrorClass.CONSTRAINT),
        (547, ErrorClass.CONSTRAINT),
        (229, ErrorClass.REFUSED),
    ],
)
def test_the_users_own_errors_are_read_the_same_way(number: int, expected: ErrorClass) -> None:
    assert classify_error(said(number)) is expected


def test_a_duplicate_is_an_answer_only_where_it_was_asked_for() -> None:
    def answer(batch: str) -> Any:
        if "INSERT" in batch:
            raise said(2627, pymssql.IntegrityError)
        return [(7,)]

    asked = Statement("INSERT /* or nothing */ INTO t\nGO\nSELECT 7", {})
    assert follow(plan_batches(asked), answer) == [(7,)]
    with pytest.raises(pymssql.IntegrityError):
        follow(plan_batches(Statement("INSERT INTO t", {})), answer)


# The executor, on a driver that follows a script ----------------------------------------------------


class Scripted:
    """A connection that answers each batch with what comes next: rows, or an error."""

    autocommit_state = True
    description = (("one",),)

    def __init__(self, script: list[Any]) -> None:
        self.script = script
        self.heard: list[str] = []
        self.closed = False

    def cursor(self, **options: Any) -> Scripted:
        return self

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *error: object) -> None: ...

    def execute(self, text: str, values: Any = None) -> None:
        if text in SETTINGS:
            return
        self.heard.append(text)
        self._rows = self.script.pop(0) if self.script else []
        if isinstance(self._rows, Exception):
            raise self._rows

    def fetchall(self) -> Any:
        return self._rows

    def nextset(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    connection = Scripted([])
    monkeypatch.setattr(pymssql, "connect", lambda **options: connection)
    return connection


def test_a_deadlock_is_sent_again(scripted: Scripted) -> None:
    store = MssqlStore(parse_url(URL))
    scripted.script = [said(1205), [(b"id",)]]
    held = complete(claim_reply(), now=0)
    assert store.execute(held) is True
    assert len(scripted.heard) == 2
    assert scripted.heard[0] == scripted.heard[1]
    assert not scripted.closed


def test_a_batch_is_rolled_back_and_sent_again(scripted: Scripted) -> None:
    store = MssqlStore(parse_url(URL))
    scripted.script = [[], said(1205), [], [], [(b"id",)], []]
    assert store.execute_many([complete(claim_reply(), now=0)]) == [True]
    kinds = [text.split()[0] for text in scripted.heard]
    assert kinds == ["BEGIN", "DECLARE", "IF", "BEGIN", "DECLARE", "COMMIT"]


def test_a_broken_connection_is_unclear_and_thrown_away(scripted: Scripted) -> None:
    store = MssqlStore(parse_url(URL))
    scripted.script = [said(20047)]
    with pytest.raises(StoreUnclear, match="broke"):
        store.execute(complete(claim_reply(), now=0))
    assert scripted.closed


def test_a_server_that_became_a_secondary_is_let_go_of(scripted: Scripted) -> None:
    store = MssqlStore(parse_url(URL))
    scripted.script = [said(3906)]
    with pytest.raises(StoreUnavailable, match="read-only"):
        store.execute(complete(claim_reply(), now=0))
    assert scripted.closed


def test_a_held_row_is_busy_for_a_claim_and_told_to_others(scripted: Scripted) -> None:
    store = MssqlStore(parse_url(URL))
    scripted.script = [said(1222)]
    reply = store.execute(claim("k", now=0))
    assert (reply.granted, reply.record) == (False, None)
    scripted.script = [said(1222)]
    with pytest.raises(StoreUnavailable, match="end that transaction"):
        store.execute(complete(claim_reply(), now=0))


def claim_reply() -> Any:
    from retrysafe.stores.memory import MemoryStore

    return MemoryStore().execute(claim("k", now=0))


# URLs and the doctor ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mssql://host", "names no database"),
        ("mssql:///shop", "names no database"),
        ("mssql://host:port/shop", "write mssql://"),
        ("mssql://host/shop?driver=ODBC", "not known"),
        ("mssql://sa:secret@host/shop?encrypt=yes", "none of off, request, require"),
    ],
)
def test_urls_that_say_nothing(url: str, why: str) -> None:
    with pytest.raises(StoreURLError, match=why) as told:
        parse_url(url)
    assert "secret" not in str(told.value)


def test_a_url_that_says_everything() -> None:
    at = parse_url("mssql://sa:s%40fe@db.example:1434/shop?table=t&schema=app&pool=3&pool_timeout=2&encrypt=require")
    assert at.connect == {
        "server": "db.example", "port": "1434", "user": "sa", "password": "s@fe", "database": "shop",
        "encryption": "require",
    }  # fmt: skip
    assert isinstance(at.names, TableNames)
    assert (at.pool, at.pool_timeout) == (3, 2.0)


GOOD = {
    "version": "16.0.4125.3", "edition": "Developer", "compatibility_level": 160, "rcsi": True, "snapshot": 0,
    "delayed_durability": "DISABLED", "page_verify": "CHECKSUM", "recovery_model": "FULL", "read_only": False,
    "collation": "Latin1_General_100_BIN2", "replicas": [],
}  # fmt: skip


def test_a_good_server_has_nothing_to_mend() -> None:
    assert [finding for finding in doctor.check_settings(GOOD) if not finding.fine] == []


@pytest.mark.parametrize(
    ("changed", "setting", "limit"),
    [
        ({"version": "12.0.6024.0"}, "version", "best-effort"),
        ({"compatibility_level": 120}, "compatibility_level", "best-effort"),
        ({"delayed_durability": "FORCED"}, "delayed_durability", "best-effort"),
        ({"delayed_durability": "ALLOWED"}, "delayed_durability", "exactly-once-capable"),
        ({"page_verify": "NONE"}, "page_verify", "best-effort"),
        ({"read_only": True}, "role", "best-effort"),
        ({"replicas": ["ASYNCHRONOUS_COMMIT"]}, "replicas", "at-most-once-until-failover"),
        ({"replicas": None}, "replicas", "at-most-once-until-failover"),
        ({"rcsi": False}, "read_committed_snapshot", "exactly-once-capable"),
        ({"collation": None}, "table", "best-effort"),
        ({"collation": "SQL_Latin1_General_CP1_CI_AS"}, "collation", "exactly-once-capable"),
    ],
)
def test_a_setting_is_judged(changed: dict[str, Any], setting: str, limit: str) -> None:
    found = [finding for finding in doctor.check_settings({**GOOD, **changed}) if not finding.fine]
    assert [(finding.setting, finding.limit) for finding in found] == [(setting, limit)]
    assert found[0].fix


def test_synchronous_replicas_lose_nothing() -> None:
    assert all(finding.fine for finding in doctor.check_settings({**GOOD, "replicas": ["SYNCHRONOUS_COMMIT"]}))


def test_the_distribution_registers_its_part_of_transactions() -> None:
    """The main package does not import it: importing the distribution is what makes a pymssql connection known."""
    Connection = type("Connection", (), {"__module__": "pymssql._pymssql"})
    adapter = sources.find_adapter(Connection(), "sync")
    assert adapter is not None
    assert adapter.load() is on_pymssql
    assert classify_error(said(1205)) is ErrorClass.RETRYABLE
    assert find_error_code(said(1205)) == "1205"


def test_the_distribution_has_the_version_of_the_main_package() -> None:
    root = Path(__file__).parents[3]
    main, ours = (
        tomllib.loads((root / place / "pyproject.toml").read_text())["project"]
        for place in (".", "distributions/retrysafe-mssql")
    )
    assert ours["version"] == main["version"]
    assert f"retrysafe=={main['version'].rpartition('.')[0]}.*" in ours["dependencies"]
    assert main["optional-dependencies"]["mssql"] == [ours["name"]]
