"""Servers for the whole run, addresses for each test, and a closing line that says what was exercised."""

from __future__ import annotations

import gc
import logging
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import duckdb
import pymysql
import pytest
from hypothesis import HealthCheck, settings
from pymongo import MongoClient

pytest.register_assert_rewrite("retrysafe.testing")

from retrysafe.stores.mysql.dialect import parse_url  # noqa: E402
from retrysafe.testing import Do  # noqa: E402  (after the rewrite was asked for)
from tests import evidence, leftovers  # noqa: E402
from tests.kept import IN_FILES, ON_SERVERS, Kept  # noqa: E402
from tests.opening import Opener, open_migrated, store_url  # noqa: E402
from tests.servers import mssql, session  # noqa: E402
from tests.servers.brokers import nats_url, rabbitmq_url  # noqa: E402, F401  (fixtures, for whoever asks)
from tests.servers.lazy import LABEL  # noqa: E402
from tests.servers.postgres import temporary_database  # noqa: E402

# Hypothesis gives each example 200 ms, and refuses data that are slow to draw: a busy machine would decide.
settings.register_profile("retrysafe", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("retrysafe")

SERVERLESS = ("unit", "typing", "docs", "layers", "client")
"""Folders of tests that never talk to a server: naming only these starts none."""

WITHOUT_SERVER = {
    "sqlite": f"SQLite {sqlite3.sqlite_version}",
    "duckdb": f"DuckDB {duckdb.__version__}",
    "memory": "memory",
}


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


# The run ------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    leftovers.clear_up()
    if is_controller(config) and needs_servers(config):
        if config.getoption("numprocesses", None):
            session.start_all()
        else:
            session.start_on_demand()


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()  # compiled modules look at the end whether they left anything behind
    if is_controller(config):
        session.stop_all()


def is_controller(config: pytest.Config) -> bool:
    """True without xdist, too."""
    return not hasattr(config, "workerinput")


def needs_servers(config: pytest.Config) -> bool:
    if config.option.collectonly:
        return False
    here = Path(__file__).parent
    asked = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    quiet = [here / folder for folder in SERVERLESS]
    return not all(any(folder in (path, *path.parents) for folder in quiet) for path in asked)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Reports travel between xdist's processes, markers do not: note the stores on the report."""
    for item in items:
        stores = sorted({name for mark in item.iter_markers("store") for name in mark.args})
        item.user_properties.extend(("store", name) for name in stores)


def pytest_collection_finish() -> None:
    """Tens of thousands of tests are kept to the end. The collector need not look at them again each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """The last thing anybody reads: after the list of failures and skips."""
    yield
    counts = exercised(terminalreporter)
    servers = session.handed_over()
    if counts:
        labels = {**{name: server.label for name, server in servers.items()}, **WITHOUT_SERVER}
        labels |= {name: name for name in counts if name not in labels} | noted(terminalreporter)
        parts = [f"{labels[name]} {counts[name]} tests" for name in labels if counts[name]]
        terminalreporter.write_sep("=", "servers")
        terminalreporter.write_line("servers: " + " · ".join(parts))
        if mssql.closing_line():
            terminalreporter.write_line(mssql.closing_line(), yellow=True)
    for server in servers.values():
        if server.missing:
            verdict = "its tests FAILED" if in_ci() else "its tests were SKIPPED"
            terminalreporter.write_line(f"NOT RUN: no {server.store} server, so {verdict}: {server.missing}", red=True)


def noted(terminalreporter: Any) -> dict[str, str]:
    """The servers that were started only when a test asked for one (tests/servers/lazy.py)."""
    passed = terminalreporter.stats.get("passed", ())
    found = (value for report in passed for name, value in report.user_properties if name == LABEL)
    return dict(label.split("=", 1) for label in found)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A whole run that passed, and yet shows less than the stores declare, has not passed."""
    if not is_controller(session.config) or not is_whole(session.config) or session.exitstatus != pytest.ExitCode.OK:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    lacking = evidence.unshown(evidence.seen(reporter.stats.get("passed", ())), not_run())
    for line in lacking:
        reporter.write_line(f"\n{line} (tests/evidence.py)", red=True)
    if lacking:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def is_whole(config: pytest.Config) -> bool:
    """Whether nothing was chosen: no path, no -k, no -m but the one that leaves out the campaigns."""
    chosen = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    return not chosen and not config.option.keyword and config.option.markexpr == "not campaign"


def not_run() -> list[str]:
    """Stores without a server, which is reported by name: nothing can be shown of them."""
    return [name for name, server in session.handed_over().items() if server.missing]


def exercised(terminalreporter: Any) -> Counter[str]:
    """How many tests ran to an end, for each store."""
    reports = [
        report
        for outcome in ("passed", "failed", "xfailed", "xpassed")
        for report in terminalreporter.stats.get(outcome, ())
        if getattr(report, "when", "") == "call"
    ]
    return Counter(value for report in reports for name, value in report.user_properties if name == "store")


# Every test ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """What a test, or a framework in it, sets up for logging ends with the test: Litestar sets the root logger's level
    and handlers when an application is made, and a level that stays decides whether a later test is traced."""
    root = logging.getLogger()
    handlers, levels = list(root.handlers), {logger: logger.level for logger in (root, *our_loggers())}
    yield
    root.handlers[:] = handlers
    for logger in our_loggers():
        logger.setLevel(levels.get(logger, logging.NOTSET))
    root.setLevel(levels[root])


def our_loggers() -> list[logging.Logger]:
    known = logging.Logger.manager.loggerDict
    return [
        logger for name, logger in known.items() if name.startswith("retrysafe") and isinstance(logger, logging.Logger)
    ]


# Addresses ----------------------------------------------------------------------------------------


def shared_url(store: str) -> str:
    """The session's server for a store. Without it: skipped at home, failed in CI."""
    server = session.shared(store)
    if server is not None and server.url:
        return server.url
    why = f"no {store} server: {server.missing if server else 'none was started for this selection of tests'}"
    if in_ci():
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def worker_number(request: pytest.FixtureRequest) -> int:
    """Which of xdist's workers this is; 0 without xdist."""
    name = getattr(request.config, "workerinput", {}).get("workerid", "gw0")
    return int(name.removeprefix("gw"))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A database of this worker's own on the session's PostgreSQL."""
    with temporary_database(shared_url("postgres")) as url:
        yield url


def own_database(store: str) -> Iterator[str]:
    """A database of this worker's own on the session's MySQL or MariaDB."""
    server, name = shared_url(store), f"retrysafe_{uuid4().hex[:12]}"
    admin = pymysql.connect(**parse_url(server).connect, autocommit=True)
    with admin, admin.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        cursor.execute(f"DROP DATABASE {name}")


@pytest.fixture(scope="session")
def mysql_url() -> Iterator[str]:
    yield from own_database("mysql")


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    yield from own_database("mariadb")


@pytest.fixture(scope="session")
def mongodb_url() -> Iterator[str]:
    """A database of this worker's own on the session's MongoDB."""
    server, name = shared_url("mongodb"), f"retrysafe_{uuid4().hex[:12]}"
    yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    admin: MongoClient[Any] = MongoClient(server)
    with admin:
        admin.drop_database(name)


@pytest.fixture(scope="session")
def dynamodb_url() -> str:
    """The session's DynamoDB. Tests take a table each (`?table=`)."""
    return shared_url("dynamodb")


@pytest.fixture(scope="session")
def redis_url(worker_number: int) -> str:
    """A numbered database of this worker's own on the session's Redis. Tests still take a prefix each."""
    return urlunsplit(urlsplit(shared_url("redis"))._replace(path=f"/{worker_number}"))


@pytest.fixture(scope="session")
def redis8_url(worker_number: int) -> str:
    """The same on Redis 8."""
    return urlunsplit(urlsplit(shared_url("redis8"))._replace(path=f"/{worker_number}"))


@pytest.fixture(scope="session")
def redis_cluster_url() -> str:
    """A cluster has one database only. Tests take a prefix each."""
    return shared_url("redis_cluster")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'retrysafe.db'}"


@pytest.fixture
def duckdb_url(tmp_path: Path) -> str:
    """A file that does not exist yet."""
    return f"duckdb:///{tmp_path / 'retrysafe.duckdb'}"


@pytest.fixture
def memory_url() -> str:
    """A name nobody else uses: whoever opens it in this test, sync or async, sees the same records."""
    return f"memory://{uuid4().hex}"


# Stores -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Kept]]:
    """`kept(store)`: this worker's own tables on it."""
    made: dict[str, Kept] = {}

    def tables(store: str) -> Kept:
        if store not in made:
            if store in IN_FILES:
                made[store] = IN_FILES[store](tmp_path_factory.mktemp(store) / "contract")
            else:
                made[store] = ON_SERVERS[store](request.getfixturevalue(f"{store}_url"))
        return made[store]

    yield tables
    for each in made.values():
        each.close()


@pytest.fixture
def opener(request: pytest.FixtureRequest, tmp_path: Path, kept: Callable[[str], Kept]) -> Opener:
    """`opener(store, colour)`: an empty store of that kind. Each call gives another, except where tables are kept."""

    def open_empty(store: str, colour: str) -> Do:
        if store in IN_FILES or store in ON_SERVERS:
            return kept(store).empty(colour)
        return open_migrated(store_url(request, tmp_path, store), colour)

    return open_empty
