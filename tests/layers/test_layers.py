"""Which way imports point, and a few things no file may do. Read from the source, nothing is run.

A rule that is in the way is changed here, with its reason, and nowhere else.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import retrysafe
import retrysafe_mssql

ROOT = Path(retrysafe.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]
MSSQL_ROOT = Path(retrysafe_mssql.__file__).parent

BASE = ("core", "errors", "policy")
MIDDLE = ("operations", "webhooks", "jobs", "consumers", "web", "client", "worker", "durable", "mcp", "operators")
TOP = ("cli", "console", "demo")
SEAM = (
    "stores.base",
    "stores.diagnosis",
    "stores.filesystems",
    "stores.lifetime",
    "stores.registry",
    "stores.schemes",
    "stores.threaded",
    "stores.batching",
    "stores.notify",
    "stores.wrappers",
    "stores.tiered",
    "stores.caches",
    "stores.json_records",
    "stores.url_options",
)

TRANSACTIONS = (*BASE, *SEAM, "engine", "transactions", "stores.sql")

TRANSACTION_ARROWS: dict[str, dict[str, str]] = {
    "base": {
        "stores.postgres.dialect": "the SQL of the store, in the parameter styles of users' drivers",
        "stores.mysql.dialect": "the same",
        "stores.sqlite.file": "the same",
    },
    "binding": {
        "stores.mongo.receipts": "SQL and MongoDB have different receipts, and this is where one of them is chosen",
        "stores.mongo.settings": "the names of MongoDB's collections, which stand for the tables of SQL",
    },
    "failures": {
        "stores.mysql.errors": "MySQL's error numbers stand in one place, with the store",
        "stores.mysql.protocol": "where in an exception the number is",
        "stores.duckdb.errors": "DuckDB has no codes: its errors are told apart by class and text, with the store",
    },
    "locks": {
        "stores.mysql.dialect": "the statement that releases GET_LOCK has the name by which the store takes the lock",
        "stores.mysql.protocol": "texts of MySQL are several statements, which a user's connection gets one by one",
    },
    "sources": {"stores.sqlite.file": "tx='sqlite:///…' is read as the store reads its URL"},
    "on_duckdb": {
        "stores.duckdb.dialect": "the SQL of the store, and how its driver binds values",
        "stores.duckdb.errors": "a duplicate key",
        "stores.duckdb.process": "the locks of keys belong to the process, and the store has them",
    },
    "on_dynamodb": {"stores.dynamodb.transact": "the operation that carries the user's writes, and its replies"},
    "on_pymongo": {
        "stores.mongo.client": "the codec",
        "stores.mongo.errors": "errors inside a reply",
        "stores.mongo.plans": "the type of a command",
        "stores.mongo.receipts": "the dialect",
        "stores.mongo.settings": "the timeout of write concerns",
    },
}
"""Module of `transactions`, what it imports of a concrete store, and why."""

SQL_STORES = ("sql", "sqlite", "postgres", "mysql", "duckdb")
"""Stores that are built from stores/sql/."""

# Who may import what of ours. The longest matching prefix counts.
MAY: dict[str, tuple[str, ...]] = {
    "core": ("core", "errors"),
    "errors": ("core",),
    "policy": ("core", "errors"),
    "stores": (*BASE, *SEAM),
    "stores.sql": (*BASE, "stores.base", "stores.url_options", "stores.sql"),
    # The doctors of the SQL stores share it. Nothing on the way of a request imports it.
    "stores.sql.schema_doctor": (*BASE, "stores.base", "stores.diagnosis", "stores.sql"),
    # Transactions read a receipt through one type for every database: sql/receipts.py has it, and the Dialect it needs.
    "stores.mongo.receipts": (*BASE, *SEAM, "stores.sql"),
    "engine": (*BASE, *SEAM, "engine"),
    # RetrySafe is the one object users hold: everything that hangs on it is reached from there.
    "engine.safe": (*BASE, *SEAM, "engine", "transactions", "operations"),
    "transactions": TRANSACTIONS,
    # A transaction on the user's connection writes what the store on the same database reads. Each arrow to a concrete
    # store is one line here, with its reason; the flow, the effects and the drivers have none.
    **{f"transactions.{name}": (*TRANSACTIONS, *arrows) for name, arrows in TRANSACTION_ARROWS.items()},
    **dict.fromkeys(MIDDLE, (*BASE, *SEAM, "engine", "transactions", "stores.sql", *MIDDLE)),
    # The edges do not import each other. Each arrow to another package of the middle has its reason.
    # operations: `saga_step` reads the running operation.
    "jobs": (*BASE, *SEAM, "engine", "transactions", "operations", "jobs"),
    # web.problems: the log's text of an error names problems by their titles.
    "consumers": (*BASE, "engine", "transactions", "consumers", "web.problems"),
    "mcp": (*BASE, "engine", "web.problems"),
    # web: a receiver is mounted in web frameworks. operations: its inbox is an operation.
    "webhooks": (*BASE, "engine", "transactions", "operations", "web", "webhooks"),
    "durable": ("core", "errors", "durable"),
    # What the command line and the console do, without either. operations: runs are resumed and undone.
    "operators": (*BASE, *SEAM, "engine", "operations", "operators"),
    # Django creates its tables by its own migrations, on the databases Django has.
    "web.django": (*BASE, *SEAM, "engine", "transactions", *MIDDLE, "stores.sql", "stores.mysql"),
    # `python -m retrysafe` and `manage.py retrysafe` start the command line.
    "__main__": ("cli",),
    "web.django.management": ("cli", "web.django"),
    # The ends may also use the public names, as any user does.
    **dict.fromkeys(TOP, (*BASE, "stores", "engine", "transactions", *MIDDLE, *TOP, "__version__", *retrysafe.__all__)),
    # The demo's application is written as a user would: with the name that people try first.
    "demo.shop": ("fastapi", "worker", "webhooks", "webhooks.fastapi", *retrysafe.__all__),
    # Adapters under the names that people try first. core.extras: a missing framework is reported with its extra.
    **dict.fromkeys(("fastapi", "starlette", "flask", "litestar", "quart", "django"), ("web", "core.extras")),
    "celery": ("jobs", "core.extras"),
    "logs": ("engine",),
    # Exporters read figures and traces. `__version__`: the version of what is measured.
    **dict.fromkeys(("otel", "prometheus"), ("core", "engine", "errors", "otel", "__version__")),
    # The reference store is the oracle of the tests.
    "testing": (*BASE, *SEAM, "engine", "stores.memory", "testing"),
    # A simulated deployment runs all of it. stores.sql: its user's database, and the store in it, send real SQL.
    "testing.simulation": (
        *BASE,
        *SEAM,
        "engine",
        "stores.memory",
        "stores.sql",
        "stores.sqlite.file",
        "transactions",
        *MIDDLE,
        "client",
        "testing",
    ),
    "": (*BASE, *SEAM, "engine", "operations", "transactions", *MIDDLE),
}

# A driver only inside its store and the file that joins its connections, a framework only inside its adapter.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "retrysafe_speedups": ("core/speedups.py",),  # our own, optional, in C (distributions/retrysafe-speedups)
    "sqlite3": (
        "stores/sqlite/",
        "transactions/on_sqlite3.py",
        "transactions/on_aiosqlite.py",
        "demo/",
        "client/journal.py",
        "testing/simulation/database.py",
    ),
    "aiosqlite": ("transactions/on_aiosqlite.py",),
    "psycopg": ("stores/postgres/", "transactions/on_psycopg.py"),
    "psycopg_pool": ("stores/postgres/", "transactions/on_psycopg.py"),
    "asyncpg": ("stores/postgres/", "transactions/on_asyncpg.py"),
    "pymysql": ("stores/mysql/", "transactions/on_pymysql.py"),
    "asyncmy": ("stores/mysql/", "transactions/on_asyncmy.py"),
    "duckdb": ("stores/duckdb/", "transactions/on_duckdb.py"),
    "pymongo": ("stores/mongo/", "transactions/on_pymongo.py"),
    "bson": ("stores/mongo/", "transactions/on_pymongo.py"),
    "boto3": ("stores/dynamodb/",),
    "botocore": ("stores/dynamodb/",),
    "aiobotocore": ("stores/dynamodb/",),
    "sqlalchemy": ("transactions/on_sqlalchemy",),
    "redis": ("stores/redis/", "worker/publishers.py", "consumers/redis", "jobs/redis"),
    "hiredis": ("stores/redis/",),
    "cryptography": ("engine/sealing.py", "webhooks/"),
    "jinja2": ("console/",),
    "markupsafe": ("console/",),  # comes with Jinja
    "pytest": ("testing/",),
    "hypothesis": ("testing/",),
    "fastapi": ("web/fastapi", "demo/", "console/"),
    "starlette": ("web/starlette", "web/fastapi", "webhooks/starlette", "demo/", "console/"),
    "pydantic": ("demo/",),
    "litestar": ("web/litestar",),
    "quart": ("web/quart",),
    "flask": ("web/flask", "webhooks/flask.py", "cli/on_flask.py"),
    "click": ("cli/on_flask.py",),  # Flask's commands are those of click
    "rich": ("cli/output.py",),
    "werkzeug": ("web/flask", "web/quart"),
    "django": ("web/django", "transactions/on_django.py", "webhooks/django.py", "console/on_django"),
    "asgiref": ("web/django",),
    "rest_framework": ("web/django", "web/drf"),
    "uvicorn": ("demo/", "cli/", "console/"),
    "httpx": ("client/httpx.py", "client/stripe.py", "cli/", "demo/"),
    "anyio": ("client/httpx.py",),
    "requests": ("client/requests.py",),
    "urllib3": ("client/requests.py",),
    "stripe": ("client/stripe.py",),
    "celery": ("jobs/celery.py",),
    "dramatiq": ("jobs/dramatiq.py",),
    "rq": ("jobs/rq.py",),
    "arq": ("jobs/arq.py",),
    "taskiq": ("jobs/taskiq.py",),
    "taskiq_dependencies": ("jobs/taskiq.py",),
    "bullmq": ("jobs/bullmq.py",),
    "huey": ("jobs/huey.py",),
    "procrastinate": ("jobs/procrastinate.py",),
    "aio_pika": ("consumers/rabbitmq.py",),
    "nats": ("consumers/nats.py",),
    "aiokafka": ("consumers/kafka.py",),
    "faststream": ("consumers/faststream.py",),
    "mcp": ("mcp.py",),
    "dbos": ("durable/dbos.py",),
    "temporalio": ("durable/temporal.py",),
    "opentelemetry": ("otel/",),
    "prometheus_client": ("prometheus.py",),
}

STDLIB = sys.stdlib_module_names - {"sqlite3"}


class Import(NamedTuple):
    module: str
    line: int


def imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is relative; write the whole name"
            assert node.module is not None
            if node.module in ("retrysafe", "retrysafe.stores"):
                yield from (Import(f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
            else:
                modules = dict.fromkeys(imported_module(node.module, alias.name) for alias in node.names)
                yield from (Import(module, node.lineno) for module in modules)


def imported_module(module: str, name: str) -> str:
    """`from retrysafe.stores.mysql import errors` imports a module of that package; other names are in the module."""
    folder = ROOT.joinpath(*module.split(".")[1:])
    is_module = module.startswith("retrysafe.") and (folder / f"{name}.py").exists()
    return f"{module}.{name}" if is_module else module


def module_of(path: Path) -> str:
    """`stores.sql.plans` for src/retrysafe/stores/sql/plans.py; empty for the package itself."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def within(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


def allowed(module: str) -> tuple[str, ...]:
    """What a module may import: by the longest prefix that has a rule, and always its own store."""
    rules = [prefix for prefix in MAY if prefix == "" or within(module, (prefix,))]
    assert module == "" or rules != [""], f"{module} is in no layer: give it one in tests/layers/test_layers.py"
    found = MAY[max(rules, key=len)]
    if module.startswith("stores."):
        # `memory.py` and `memory_outbox.py` are one store; so is everything in a store's folder.
        name = module.split(".")[1].partition("_")[0]
        shared = ("stores.sql",) if name in SQL_STORES else ()
        found = (*found, *shared, f"stores.{name}", f"stores.{name}_outbox")
    return found


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_imports_point_down(path: Path) -> None:
    may = allowed(module_of(path))
    wrong = [
        f"line {found.line}: {found.module}"
        for found in imports(path)
        if found.module.partition(".")[0] == "retrysafe" and not within(found.module.removeprefix("retrysafe."), may)
    ]
    assert wrong == []


def test_each_arrow_from_transactions_to_a_store_is_needed() -> None:
    """An arrow that is gone leaves the list, too."""
    listed = {(name, store) for name, arrows in TRANSACTION_ARROWS.items() for store in arrows}
    found = set()
    for path in (ROOT / "transactions").glob("*.py"):
        for each in imports(path):
            store = each.module.removeprefix("retrysafe.")
            if store.startswith("stores.") and not within(store, (*SEAM, "stores.sql")):
                found.add((path.stem, store))
    assert found == listed


PACKAGE_CYCLES: dict[tuple[str, str], str] = {
    ("engine", "transactions"): "RetrySafe (engine.safe) is the one object that users hold, and what hangs on it is "
    "reached from there: safe.transaction. In the other direction transactions use the engine's flows; they "
    "get the RetrySafe as an argument, and import it for its type only",
    ("engine", "operations"): "the same for safe.operation and safe.publish",
    (
        "errors",
        "core",
    ): "messages have times and URLs in them, and core formats both; in the other direction core's own "
    "checks raise our errors. The three modules that errors.py imports do not import it",
}
"""The arrows that close a cycle of packages, and why each is there. Without them no package imports itself by a way
around."""


def package_of(module: str) -> str:
    return module.partition(".")[0]


STARTERS = ("__main__", "web.django.management")
"""Modules that start a program: `python -m retrysafe` and `manage.py retrysafe`. Nothing of ours imports them."""


def package_arrows() -> set[tuple[str, str]]:
    arrows = set()
    for path in FILES:
        if within(module_of(path), STARTERS):
            continue
        here = package_of(module_of(path))
        for each in imports(path):
            top, _, rest = each.module.partition(".")
            if top == "retrysafe" and rest and here and package_of(rest) != here:
                arrows.add((here, package_of(rest)))
    return arrows


def test_packages_that_import_each_other_are_listed() -> None:
    arrows = package_arrows()
    assert {frozenset(arrow) for arrow in arrows if arrow[::-1] in arrows} == {*map(frozenset, PACKAGE_CYCLES)}


def test_without_the_listed_arrows_there_is_no_cycle() -> None:
    """Take away, again and again, the packages that import none of those that are left."""
    arrows = package_arrows() - PACKAGE_CYCLES.keys()
    left = {package for arrow in arrows for package in arrow}
    while free := {package for package in left if not any(a == package and b in left for a, b in arrows)}:
        left -= free
    assert left == set()


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_drivers_and_frameworks_stay_in_their_place(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    wrong = []
    for found in imports(path):
        top = found.module.partition(".")[0]
        if top not in STDLIB and top != "retrysafe" and not name.startswith(THIRD_PARTY.get(top, ("nowhere",))):
            wrong.append(f"line {found.line}: {found.module}")
    assert wrong == []


def test_the_distribution_of_sql_server_uses_the_seam_and_one_driver() -> None:
    """A distribution uses what a store uses, and the transactions that it registers with. Nothing of ours imports it:
    test_drivers_and_frameworks_stay_in_their_place has no place for it."""
    may = (*BASE, *SEAM, "stores.sql", "transactions")
    wrong = []
    for path in sorted(MSSQL_ROOT.rglob("*.py")):
        for found in imports(path):
            top, _, rest = found.module.partition(".")
            if top not in STDLIB and top not in ("pymssql", "retrysafe_mssql") and not within(rest, may):
                wrong.append(f"{path.name} line {found.line}: {found.module}")
    assert wrong == []


def test_nothing_imports_the_ends() -> None:
    """cli, console and testing are ends: production code that imports them would carry them along."""
    ends = ("retrysafe.cli", "retrysafe.console", "retrysafe.testing")
    wrong = [
        f"{module_of(path)} imports {found.module}"
        for path in FILES
        for found in imports(path)
        if within(found.module, ends)
        and module_of(path).partition(".")[0] not in (*TOP, "testing")
        and not within(module_of(path), STARTERS)
    ]
    assert wrong == []


def test_production_never_imports_testing() -> None:
    wrong = [
        module_of(path)
        for path in FILES
        if not module_of(path).startswith("testing")
        and any(within(found.module, ("retrysafe.testing",)) for found in imports(path))
    ]
    assert wrong == []


# Purity ------------------------------------------------------------------------------------------

IMPURE = ("time", "random", "uuid", "secrets", "socket", "os", "threading", "asyncio", "logging", "subprocess")
PURE_NAMES = {"uuid": {"UUID"}}
"""A type to read and write; it draws nothing by itself."""

CORE = [path for path in FILES if module_of(path).startswith("core")]


@pytest.mark.parametrize("path", CORE, ids=[path.name for path in CORE])
def test_the_core_has_no_clock_no_randomness_and_no_io(path: Path) -> None:
    wrong = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            wrong += [alias.name for alias in node.names if alias.name.partition(".")[0] in IMPURE]
        elif isinstance(node, ast.ImportFrom) and node.module in IMPURE:
            wrong += [a.name for a in node.names if a.name not in PURE_NAMES.get(node.module, set())]
        elif isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today"):
            owner = node.value
            if isinstance(owner, ast.Name) and owner.id in ("datetime", "date"):
                wrong.append(f"line {node.lineno}: {owner.id}.{node.attr}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "print"):
            wrong.append(f"line {node.lineno}: {node.func.id}()")
    assert wrong == []


# Security ----------------------------------------------------------------------------------------

CODE_FROM_DATA = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "yaml", "joblib"}


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_stored_bytes_never_become_code(path: Path) -> None:
    """S15."""
    wrong = [f"line {found.line}: {found.module}" for found in imports(path) if found.module in CODE_FROM_DATA]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            wrong.append(f"line {node.lineno}: {node.func.id}()")
    assert wrong == []


# The fence ---------------------------------------------------------------------------------------

SQL = sorted(
    path for root in (ROOT / "stores", MSSQL_ROOT) for path in root.rglob("*.sql") if "migrations" not in path.parts
)
UPDATES = [path for path in SQL if re.search(r"\bUPDATE\s+\{keys\}", path.read_text())]
UNFENCED = {
    "rebirth": "expires <= {now}",
    "receipt_replace": "attempt = :seen_attempt AND token = :seen_token",
    "receipt_reclaim": "attempt = :seen_attempt AND token = :seen_token",
    "takeover": "lease_until <= {now}",
}
"""They start a life or an attempt, so they have no fence yet; each asks again for what makes the record free."""


FENCED = re.compile(
    # One record; a batch joined to its own fences: `k.token = g.token`; or a batch whose fences are chosen by the id of
    # the row (mysql/batches.py; test_mysql_packets.py has fences that differ).
    r"id = :id AND attempt = :attempt AND token = :token\b"
    r"|id IN \(\{ids\}\) AND attempt = \{attempt\} AND token = \{token\}"
    r"|k\.id = g\.id AND (k\.id = ANY\([^ ]+ AS bytea\[\]\)\) AND )?k\.attempt = g\.attempt AND k\.token = g\.token\b"
)


def statement(path: Path) -> str:
    """The text without its comments, on one line."""
    lines = [line.partition("--")[0] for line in path.read_text().splitlines()]
    return re.sub(r"\s+", " ", " ".join(lines)).strip()


def test_there_are_updates_to_look_at() -> None:
    names = {path.stem for path in UPDATES}
    assert {"renew", "advance", "complete", "release", "suspect", "forget", "rebirth", "takeover"} <= names


@pytest.mark.parametrize("path", UPDATES, ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_every_update_of_a_record_is_fenced(path: Path) -> None:
    """I4: one path that forgets the predicate is enough for a zombie."""
    condition = re.split(r"\bUPDATE \{keys\}", statement(path))[-1].partition(" WHERE ")[2]
    if path.stem in UNFENCED:
        assert UNFENCED[path.stem] in condition
    else:
        assert FENCED.match(condition)
        assert "state" in condition


@pytest.mark.parametrize("path", SQL, ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_no_statement_touches_everything(path: Path) -> None:
    text = statement(path)
    if re.match(r"(UPDATE|DELETE)\b", text):
        assert " WHERE " in text


def test_records_are_deleted_only_when_they_have_expired() -> None:
    deleting = [path for path in SQL if re.search(r"\bDELETE FROM \{keys\}", statement(path))]
    assert {path.stem for path in deleting} == {"reap", "reap_onward"}
    for path in deleting:
        assert "state IN ('completed', 'released') AND expires <= {now}" in statement(path)
