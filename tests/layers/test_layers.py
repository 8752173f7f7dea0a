"""Which way imports point (STYLE.md section 3), and a few things no file may do. Read from the source, nothing is run.

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

ROOT = Path(retrysafe.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]

BASE = ("core", "errors", "policy")
MIDDLE = ("operations", "webhooks", "jobs", "consumers", "web", "client", "worker", "durable", "mcp")
TOP = ("cli", "console", "demo")
SEAM = (
    "stores.base",
    "stores.diagnosis",
    "stores.filesystems",
    "stores.lifetime",
    "stores.registry",
    "stores.threaded",
    "stores.batching",
    "stores.notify",
    "stores.wrappers",
    "stores.tiered",
    "stores.json_records",
)

# Who may import what of ours. The longest matching prefix counts.
MAY: dict[str, tuple[str, ...]] = {
    "core": ("core", "errors"),
    "errors": ("core",),
    "policy": ("core", "errors"),
    "stores": (*BASE, *SEAM),
    "stores.sql": (*BASE, "stores.base", "stores.sql"),
    "engine": (*BASE, *SEAM, "engine"),
    # RetrySafe is the one object users hold: everything that hangs on it is reached from there.
    "engine.safe": (*BASE, *SEAM, "engine", "transactions", "operations"),
    # Joining the user's connection means speaking the dialect of the store that lives there.
    "transactions": (
        *BASE,
        *SEAM,
        "engine",
        "transactions",
        "stores.sql",
        "stores.sqlite",
        "stores.postgres",
        "stores.mysql",
        "stores.dynamodb",
        "stores.mongo",
        "stores.duckdb",
        "stores.mssql",
    ),
    **dict.fromkeys(MIDDLE, (*BASE, *SEAM, "engine", "transactions", "stores.sql", *MIDDLE)),
    # Django creates its tables by its own migrations, on the databases Django has.
    "web.django": (*BASE, *SEAM, "engine", "transactions", *MIDDLE, "stores.sql", "stores.mysql"),
    # The ends may also use the public names, as any user does.
    **dict.fromkeys(TOP, (*BASE, "stores", "engine", "transactions", *MIDDLE, *TOP, "__version__", *retrysafe.__all__)),
    # Adapters under the names that people try first.
    **dict.fromkeys(("fastapi", "starlette", "flask", "litestar", "quart", "django"), ("web",)),
    # The reference store is the oracle of the tests.
    "testing": (*BASE, *SEAM, "engine", "stores.memory", "testing"),
    "": (*BASE, *SEAM, "engine", "operations", "transactions", *MIDDLE),
}

# A driver only inside its store and the file that joins its connections, a framework only inside its adapter.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "sqlite3": (
        "stores/sqlite/",
        "transactions/on_sqlite3.py",
        "transactions/on_aiosqlite.py",
        "demo/",
        "client/journal.py",
    ),
    "aiosqlite": ("transactions/on_aiosqlite.py",),
    "psycopg": ("stores/postgres/", "transactions/on_psycopg.py"),
    "psycopg_pool": ("stores/postgres/", "transactions/on_psycopg.py"),
    "asyncpg": ("stores/postgres/", "transactions/on_asyncpg.py"),
    "pymysql": ("stores/mysql/", "transactions/on_pymysql.py"),
    "asyncmy": ("stores/mysql/", "transactions/on_asyncmy.py"),
    "duckdb": ("stores/duckdb/", "transactions/on_duckdb.py"),
    "pymssql": ("stores/mssql/", "transactions/on_pymssql.py"),
    "pymongo": ("stores/mongo/", "transactions/on_pymongo.py"),
    "bson": ("stores/mongo/", "transactions/on_pymongo.py"),
    "boto3": ("stores/dynamodb/",),
    "botocore": ("stores/dynamodb/",),
    "aiobotocore": ("stores/dynamodb/",),
    "sqlalchemy": ("transactions/on_sqlalchemy",),
    "redis": ("stores/redis/", "worker/publishers.py", "consumers/redis", "jobs/redis"),
    "hiredis": ("stores/redis/",),
    "cryptography": ("engine/sealing.py", "webhooks/"),
    "pytest": ("testing/",),
    "hypothesis": ("testing/",),
    "fastapi": ("web/fastapi", "demo/", "console/"),
    "starlette": ("web/starlette", "web/fastapi", "webhooks/starlette", "demo/", "console/"),
    "litestar": ("web/litestar",),
    "quart": ("web/quart",),
    "flask": ("web/flask", "webhooks/flask.py"),
    "werkzeug": ("web/flask", "web/quart"),
    "django": ("web/django", "transactions/on_django.py", "webhooks/django.py"),
    "asgiref": ("web/django",),
    "rest_framework": ("web/django", "web/drf"),
    "uvicorn": ("demo/", "cli/", "console/"),
    "httpx": ("client/httpx.py", "client/stripe.py", "cli/"),
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
                yield Import(node.module, node.lineno)


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
        found = (*found, "stores.sql", f"stores.{name}", f"stores.{name}_outbox")
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


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_drivers_and_frameworks_stay_in_their_place(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    wrong = []
    for found in imports(path):
        top = found.module.partition(".")[0]
        if top not in STDLIB and top != "retrysafe" and not name.startswith(THIRD_PARTY.get(top, ("nowhere",))):
            wrong.append(f"line {found.line}: {found.module}")
    assert wrong == []


def test_nothing_imports_the_ends() -> None:
    """cli, console and testing are ends: production code that imports them would carry them along."""
    ends = ("retrysafe.cli", "retrysafe.console", "retrysafe.testing")
    wrong = [
        f"{module_of(path)} imports {found.module}"
        for path in FILES
        for found in imports(path)
        if within(found.module, ends) and module_of(path).partition(".")[0] not in (*TOP, "testing")
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

SQL = sorted(path for path in (ROOT / "stores").rglob("*.sql") if "migrations" not in path.parts)
UPDATES = [path for path in SQL if re.search(r"\bUPDATE\s+\{keys\}", path.read_text())]
UNFENCED = {
    "rebirth": "expires <= {now}",
    "receipt_replace": "attempt = :seen_attempt AND token = :seen_token",
    "takeover": "lease_until <= {now}",
}
"""They start a life or an attempt, so they have no fence yet; each asks again for what makes the record free."""


FENCED = re.compile(
    # One record, or a batch joined to its own fences: `k.token = g.token`.
    r"id = :id AND attempt = :attempt AND token = :token\b"
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
    condition = statement(path).partition(" WHERE ")[2]
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
    assert {path.stem for path in deleting} == {"reap"}
    for path in deleting:
        assert "state IN ('completed', 'released') AND expires <= {now}" in statement(path)
