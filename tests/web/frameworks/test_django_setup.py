"""What Django's own commands say and do: system checks, and migrations on every database that has a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.web.frameworks import django_project as project  # sets Django up, so it comes first

# isort: split
from django.core import checks as django_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections
from django.test import Client, override_settings
from django.urls import include, path
from django.views import View

from retrysafe import Policy, RetrySafe
from retrysafe.core.ops import Lookup
from retrysafe.stores.sql import migrations as sql_migrations
from retrysafe.stores.sql.names import build_names
from retrysafe.web.django import checks, conf, drf, idempotent, schema
from retrysafe.web.django import migrations as ours
from tests.transactions.django_databases import django_alias


def told(check: Any, **more: Any) -> list[str]:
    return [message.id.removeprefix("retrysafe.") for message in check(**more)]


def setting(**given: Any) -> Any:
    return override_settings(RETRYSAFE=given)


class TestChecks:
    def test_a_project_that_is_set_up_well(self) -> None:
        found = django_checks.run_checks()
        assert [message for message in found if message.id.startswith("retrysafe")] == []

    @pytest.mark.parametrize(
        ("middleware", "ids"),
        [
            ([project.OURS, *project.REST], []),
            (["django.middleware.security.SecurityMiddleware", project.OURS], []),
            ([checks.MIDDLEWARE[1]], []),
            (project.REST, ["E002"]),
            ([*project.REST, project.OURS], ["W003"]),
        ],
    )
    def test_the_middleware_is_there_and_first(self, middleware: list[str], ids: list[str]) -> None:
        with override_settings(MIDDLEWARE=middleware):
            assert told(checks.check_middleware) == ids

    def test_a_view_that_answers_202_needs_a_status_url(self) -> None:
        accepted = Policy(busy="accepted")

        class Payments(drf.IdempotentMixin, View):  # type: ignore[misc]  # Django ships no types
            idempotency_policy = accepted

        patterns = (
            path("pay", idempotent(policy=accepted)(lambda request: None)),
            path("plain", idempotent(lambda request: None)),
            path("shop/", include(([path("ship", Payments.as_view())], "shop"))),
        )
        with override_settings(ROOT_URLCONF=patterns):
            found = checks.check_accepting()
            assert [message.id for message in found] == ["retrysafe.W007"] * 2
            assert [message.msg.split()[0] for message in found] == ["pay", "shop/ship"]
            with setting(**conf.read_setting(), STATUS_PATH="/status"):
                assert told(checks.check_accepting) == []

    @pytest.mark.parametrize("wrong", [{"URL": "nosuch://x"}, {"TYPO": 1}, {"SCOPE": "no.where"}, {"DATABASE": "none"}])
    def test_a_setting_that_cannot_work(self, wrong: dict[str, Any]) -> None:
        with setting(**wrong):
            assert told(checks.check_configuration) == ["E001"]
            assert told(checks.check_durability) in ([], ["E005"])

    def test_check_fails_the_command(self) -> None:
        with setting(TYPO=1), pytest.raises(SystemCheckError, match=r"retrysafe\.E001"):
            call_command("check", stdout=StringIO(), stderr=StringIO())

    def test_memory_is_not_for_production(self) -> None:
        with setting(URL="memory://checked"):
            assert told(checks.check_durability) == ["E005"]
        assert told(checks.check_durability) == []

    def test_sqlite_with_atomic_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert told(checks.check_atomic_requests) == []
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
        assert told(checks.check_atomic_requests) == ["W004"]
        with setting(URL="memory://checked"):
            assert told(checks.check_atomic_requests) == []

    def test_missing_tables(self, tmp_path: Path) -> None:
        with django_alias(f"sqlite:///{tmp_path / 'empty.db'}", 5) as alias, setting(DATABASE=alias):
            assert told(checks.check_tables, databases=[alias]) == ["W006"]
            assert told(checks.check_tables, databases=None) == []
            migrate(alias)
            assert told(checks.check_tables, databases=[alias]) == []


def of(*stores: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.store(name)) for name in stores]


EVERY = of("sqlite", "postgres", "mysql", "mariadb")
FIRST = {"retrysafe_keys", "retrysafe_meta"}
ALL = FIRST | {"retrysafe_outbox", "retrysafe_receipts"}


@pytest.fixture(params=EVERY)
def alias(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of Django's that is the project's own for this test."""
    url = (
        f"sqlite:///{tmp_path / 'project.db'}"
        if request.param == "sqlite"
        else request.getfixturevalue(f"{request.param}_url")
    )
    with django_alias(url, 5) as made, setting(DATABASE=made):
        drop_tables(made)
        yield made
        migrate(made, "zero")
        conf.safe().close()


def drop_tables(alias: str) -> None:
    """Other tests of this worker may have used the tables' default names in this database."""
    known = connections[alias].introspection.table_names()
    with connections[alias].cursor() as cursor:
        for name in tables(alias):
            cursor.execute(f"DROP TABLE {name}")
        if "django_migrations" in known:
            cursor.execute("DELETE FROM django_migrations WHERE app = 'retrysafe'")


def migrate(alias: str, *to: str) -> str:
    """The output of a command."""
    out = StringIO()
    call_command("migrate", "retrysafe", *to, database=alias, stdout=out, no_color=True)
    return out.getvalue()


def printed(alias: str, migration: str, **how: Any) -> list[str]:
    """The statements of `sqlmigrate`."""
    text = call_command("sqlmigrate", "retrysafe", migration, database=alias, stdout=StringIO(), no_color=True, **how)
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [statement.strip() for statement in code.split(";") if statement.strip()]


def run(alias: str, statements: Iterable[str]) -> None:
    with connections[alias].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def tables(alias: str) -> set[str]:
    return {name for name in connections[alias].introspection.table_names() if name.startswith("retrysafe_")}


def described(alias: str) -> dict[str, Any]:
    """The columns of each table, as Django sees them."""
    introspection = connections[alias].introspection
    with connections[alias].cursor() as cursor:
        return {table: introspection.get_table_description(cursor, table) for table in sorted(tables(alias))}


def test_migrate_is_enough(alias: str) -> None:
    assert tables(alias) == set()
    migrate(alias)
    assert tables(alias) == ALL
    assert told(checks.check_tables, databases=[alias]) == []
    assert "No migrations to apply" in migrate(alias)
    with RetrySafe(conf.store_url()) as safe:
        assert safe.migrate() == [], "the store finds nothing to do"
        calls = []
        once = safe.once("order:{n}")(lambda n: calls.append(n) or n)
        assert [once(7), once(7)] == [7, 7]
        assert safe.execute(Lookup(bytes(32))).record is None
    assert calls == [7]
    migrate(alias, "0001")
    assert tables(alias) == FIRST
    migrate(alias)
    assert tables(alias) == ALL, "there and back again"
    migrate(alias, "zero")
    assert tables(alias) == set()


def test_a_view_keeps_its_keys_there(alias: str) -> None:
    migrate(alias)
    key = project.fresh()
    headers = {"Idempotency-Key": key, "X-Tag": key}
    with setting(DATABASE=alias, SCOPE=lambda request: "anyone"):
        first, again = (Client().post("/apay", {"amount": 5}, "application/json", headers=headers) for _ in range(2))
    assert (first.status_code, again.headers["Idempotent-Replayed"]) == (201, "true")
    assert again.content == first.content
    assert project.RAN.count(key) == 1
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM retrysafe_keys WHERE state = 'completed'")
        assert cursor.fetchone() == (1,)


LATER = ("0002_outbox", "0003_late_copies", "0004_outbox_namespaces", "0005_receipts", "0006_dead_letters")


def test_one_migration_at_a_time(alias: str) -> None:
    migrate(alias, "0001")
    assert tables(alias) == FIRST
    with RetrySafe(conf.store_url()) as safe:
        assert safe.migrate() == [*LATER], "the store goes on from there"
    migrate(alias)
    assert tables(alias) == ALL


def test_what_the_store_has_created_is_left_as_it_is(alias: str) -> None:
    with RetrySafe(conf.store_url()) as safe:
        safe.migrate()
        once = safe.once("order:{n}")(lambda n: uuid4().hex)
        first = once(7)
        before = described(alias)
        assert "Applying retrysafe.0002_outbox... OK" in migrate(alias)
        assert described(alias) == before
        assert once(7) == first, "what is remembered is still there"


def test_what_sqlmigrate_prints_makes_the_same_tables(alias: str) -> None:
    migrate(alias)
    made = described(alias)
    migrate(alias, "zero")
    run(alias, [*printed(alias, "0001"), *(text for name in LATER for text in printed(alias, name[:4]))])
    assert described(alias) == made
    with RetrySafe(conf.store_url()) as safe:
        assert safe.migrate() == [], "the version is written down, too"
    back = [text for name in reversed(LATER) for text in printed(alias, name[:4], backwards=True)]
    run(alias, back)
    assert tables(alias) == FIRST
    with RetrySafe(conf.store_url()) as safe:
        assert safe.migrate() == [*LATER]
    run(alias, [*back, *printed(alias, "0001", backwards=True)])
    assert tables(alias) == set()


@pytest.mark.parametrize("alias", of("mysql", "mariadb"), indirect=True)
def test_who_was_interrupted_goes_on(alias: str) -> None:
    """A CREATE commits by itself there: the tables may exist while the migration is not recorded."""
    *made, _ = printed(alias, "0001")
    run(alias, made)
    assert tables(alias) == FIRST
    migrate(alias)
    with RetrySafe(conf.store_url()) as safe:
        assert safe.migrate() == []
    assert tables(alias) == ALL


class Nowhere:
    """A database router that allows no migration anywhere."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return False


def test_a_router_is_asked(tmp_path: Path) -> None:
    with django_alias(f"sqlite:///{tmp_path / 'project.db'}", 5) as alias, setting(DATABASE=alias):
        with override_settings(DATABASE_ROUTERS=[Nowhere()]):
            migrate(alias)
        assert tables(alias) == set()


def test_another_database_is_let_be(alias: str, tmp_path: Path) -> None:
    with django_alias(f"sqlite:///{tmp_path / 'other.db'}", 5) as other:
        migrate(other)
        assert tables(other) == set()


def test_each_migration_of_a_store_has_its_twin_for_django() -> None:
    """So that an existing installation also gets it by `manage.py migrate`."""
    folder = Path(ours.__file__).parent
    twins = {int(file.name[:4]) for file in folder.glob("0*.py")}
    for dialect in schema.DIALECTS.values():
        assert max(twins) == sql_migrations.latest_version(dialect, build_names())


def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "retrysafe", check=True, dry_run=True, verbosity=0)
