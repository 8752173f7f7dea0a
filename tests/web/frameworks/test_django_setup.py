"""What Django's own commands say and do: system checks, and migrations on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.web.frameworks import django_project as project  # sets Django up, so it comes first

# isort: split
from django.core import checks as django_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections
from django.test import override_settings

from retrysafe import RetrySafe
from retrysafe.core.ops import Lookup
from retrysafe.stores.sql import migrations as sql_migrations
from retrysafe.stores.sql.names import names
from retrysafe.web.django import checks, conf, schema
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
            call_command("migrate", "retrysafe", database=alias, verbosity=0)
            assert told(checks.check_tables, databases=[alias]) == []


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres")])
def alias(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of Django's that is the project's own for this test."""
    url = (
        f"sqlite:///{tmp_path / 'project.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    )
    with django_alias(url, 5) as made, setting(DATABASE=made):
        yield made
        call_command("migrate", "retrysafe", "zero", database=made, verbosity=0)
        conf.safe().close()


def tables(alias: str) -> set[str]:
    return {name for name in connections[alias].introspection.table_names() if name.startswith("retrysafe_")}


def test_migrate_is_enough(alias: str) -> None:
    assert tables(alias) == set()
    call_command("migrate", "retrysafe", database=alias, verbosity=0)
    made = tables(alias)
    assert {"retrysafe_keys", "retrysafe_meta"} <= made
    with RetrySafe(conf.store_url()) as safe:
        assert safe.migrate() == [], "the store finds nothing to do"
        calls = []
        once = safe.once("order:{n}")(lambda n: calls.append(n) or n)
        assert [once(7), once(7)] == [7, 7]
        assert safe.execute(Lookup(bytes(32))).record is None
    assert calls == [7]
    call_command("migrate", "retrysafe", "0001", database=alias, verbosity=0)
    assert tables(alias) == {"retrysafe_keys", "retrysafe_meta"}
    call_command("migrate", "retrysafe", database=alias, verbosity=0)
    assert tables(alias) == made, "there and back again"
    call_command("migrate", "retrysafe", "zero", database=alias, verbosity=0)
    assert tables(alias) == set()


def test_what_the_store_has_created_is_left_as_it_is(alias: str) -> None:
    with RetrySafe(conf.store_url()) as safe:
        safe.migrate()
        before = tables(alias)
        call_command("migrate", "retrysafe", database=alias, verbosity=0)
        assert tables(alias) == before


def test_another_database_is_let_be(alias: str, tmp_path: Path) -> None:
    with django_alias(f"sqlite:///{tmp_path / 'other.db'}", 5) as other:
        call_command("migrate", "retrysafe", database=other, verbosity=0)
        assert tables(other) == set()


def test_each_migration_of_a_store_has_its_twin_for_django() -> None:
    """So that an installation which is there already gets it by `manage.py migrate`, too."""
    folder = Path(ours.__file__).parent
    twins = {int(file.name[:4]) for file in folder.glob("0*.py")}
    for dialect in schema.DIALECTS.values():
        assert max(twins) == sql_migrations.latest(dialect, names())


def test_no_migration_is_missing() -> None:
    call_command("makemigrations", "retrysafe", check=True, dry_run=True, verbosity=0)
