"""The SQL dialect of MySQL and MariaDB, their URL, the settings of a connection, and how the schema is applied. Imports
no driver."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from retrysafe.core.urls import redact_secrets, safe_url
from retrysafe.errors import StoreUnavailable, StoreURLError
from retrysafe.stores.base import Capabilities, Plan
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import DEFAULT_PREFIX, TableNames, build_names, parse_number_option, split_options
from retrysafe.stores.sql.rows import COLUMNS
from retrysafe.stores.sql.schema_state import find_table

if TYPE_CHECKING:
    from ssl import SSLContext

CAPABILITIES = Capabilities(
    name="mysql",
    durable=True,
    shared=True,
    transactions=True,
    clock="store",
    outbox=True,
    lists_by_id=True,
    backlog="index",
    mixed_batches=True,
    max_in_flight=2,
    has_install_id=True,
)

# Settings of a connection -------------------------------------------------------------------------

CHARSET = "utf8mb4"
CONNECT_TIMEOUT_SECONDS = 5
READ_TIMEOUT_SECONDS = 15
"""A server that is connected and sends nothing for this long counts as lost."""

LOCK_TIMEOUT_SECONDS = 1
"""How long a write waits for a row that another transaction has locked (I28). The server counts in whole seconds."""

SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET SESSION innodb_lock_wait_timeout = {LOCK_TIMEOUT_SECONDS}",
    "SET SESSION sql_mode = 'TRADITIONAL'",
)
"""Sent on each connection of a store, whatever the server's defaults are.

READ COMMITTED: a plain read sees what is committed now, not what was committed when the transaction began, and there
are no gap locks. TRADITIONAL is a strict mode: the server refuses a value that does not fit, and does not cut it."""

# Dialect ------------------------------------------------------------------------------------------

_COLUMNS = ", ".join(f"`{column}`" for column in COLUMNS)


@dataclass(frozen=True)
class MysqlDialect(Dialect):
    """MySQL has no RETURNING: a write reports how many rows it changed, and a text that must read what it wrote is two
    statements (protocol.py). `key` is a reserved word."""

    collation: str = "utf8mb4_0900_bin"
    """The server's name of the collation that compares code points, trailing spaces included."""

    def fill(self, text: str, names: TableNames) -> str:
        if not names.keys:  # the conditions of a list, which plans.py assembles
            text = text.replace("state = 'released' AND point <> ''", "resting = 1")  # `resting` has the index
        text = text.replace("{columns}", _COLUMNS).replace("{collation}", self.collation)
        return super().fill(text.replace("RETURNING 1", ""), quote_names(names))


def quote_names(names: TableNames) -> TableNames:
    """Names in backticks: the meaning of double quotes depends on the session's sql_mode."""
    return TableNames(*(text.replace('"', "`") for text in names))


# TIMESTAMPDIFF on UTC, not UNIX_TIMESTAMP: that function uses the session's time zone, where one hour of every autumn
# occurs twice. The server reads the clock once per statement, also if the statement waits for a row. So a lease counts
# from the start of the statement, and its owner counts from before it sent the statement (tests/faults/test_waited.py).
DIALECT = MysqlDialect(
    package="retrysafe.stores.mysql",
    now="coalesce(:now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))",
    empty="x''",
    least="least",
    greatest="greatest",
    parameter="%({})s",
    insert_reads=True,
    find_table=("SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '{bare}'"),
    find_columns=(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = '{bare}'"
    ),
    # A lock's name is valid on the whole server, so it contains the database.
    try_lock="GET_LOCK(CONCAT('retrysafe:', CRC32(DATABASE()), ':', :lock), 0)",
    savepoint="SAVEPOINT `{}`",
    release="RELEASE SAVEPOINT `{}`",
    no_savepoint="does not exist",
    create_meta=(
        "CREATE TABLE IF NOT EXISTS {meta} (name varchar(64) NOT NULL PRIMARY KEY, value longtext NOT NULL) "
        "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}"
    ),
    put_version=(
        "INSERT INTO {meta} (name, value) VALUES ('version', '{version}') ON DUPLICATE KEY UPDATE value = '{version}'"
    ),
)

MARIADB = replace(DIALECT, collation="utf8mb4_nopad_bin")
"""For MariaDB's tables. Everything else is the same."""

RELEASE_LOCK = "DO RELEASE_LOCK(CONCAT('retrysafe:', CRC32(DATABASE()), ':', {}))"
"""GET_LOCK belongs to the session, not to the transaction: it must be released after the transaction."""

# URL ----------------------------------------------------------------------------------------------

_OPTIONS = frozenset({"table", "pool", "pool_timeout", "ssl", "ssl_ca", "socket"})
_DEFAULT_PORT = 3306


class MysqlLocation(NamedTuple):
    connect: dict[str, Any]
    """Arguments for the driver, the same for PyMySQL and asyncmy."""
    names: TableNames
    pool: int
    pool_timeout: float
    url: str


def parse_url(url: str) -> MysqlLocation:
    """`mysql://user:password@host:port/database`, with `table=`, `pool=`, `pool_timeout=`, `ssl=on`, `ssl_ca=FILE`
    and `socket=FILE`."""
    plain, options = split_options(url, _OPTIONS)
    parts = urlsplit(plain)
    shown = safe_url(url)
    database = unquote(parts.path.strip("/"))
    if not database or "/" in database or not (parts.hostname or "socket" in options):
        raise StoreURLError(f"{shown!r} names no database; write mysql://user:password@host:3306/database")
    if parts.query:
        known = ", ".join(f"{name}=" for name in sorted(_OPTIONS))
        raise StoreURLError(f"{shown!r} has options that are not known; there are {known}")
    try:
        port = parts.port or _DEFAULT_PORT
    except ValueError as error:
        raise StoreURLError(
            f"{shown!r}: {redact_secrets(str(error), url)}; write mysql://user@host:3306/database"
        ) from error
    connect: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": port,
        "user": unquote(parts.username or "root"),
        "password": unquote(parts.password or ""),
        "database": database,
        "charset": CHARSET,
    }
    if "socket" in options:
        connect["unix_socket"] = options["socket"]
    tls = _build_tls(options, shown)
    if tls is not None:
        connect["ssl"] = tls
    tables = build_names(options.get("table", DEFAULT_PREFIX))
    return MysqlLocation(
        connect,
        tables,
        int(parse_number_option(options, "pool", 10)),
        parse_number_option(options, "pool_timeout", 5.0),
        url,
    )


def _build_tls(options: dict[str, str], shown: str) -> SSLContext | None:
    """`ssl=on` checks the server's certificate with the system's authorities, `ssl_ca=` with those of a file."""
    wanted = options.get("ssl", "on" if "ssl_ca" in options else "off")
    if wanted not in ("on", "off"):
        raise StoreURLError(f"ssl={wanted!r} in {shown!r} is neither on nor off; write ssl=on, or ssl_ca=FILE")
    if wanted == "off":
        return None
    file = options.get("ssl_ca")
    if file is not None and not Path(file).is_file():
        raise StoreURLError(f"ssl_ca={file!r} in {shown!r} is no file; give the path of the authority's certificate")
    from ssl import create_default_context  # slow to import, and every transaction imports this file

    return create_default_context(cafile=file)


# Schema -------------------------------------------------------------------------------------------

LOCK_QUERY = "SELECT GET_LOCK(CONCAT(:lock, CRC32(DATABASE())), 10)"
UNLOCK_QUERY = "SELECT RELEASE_LOCK(CONCAT(:lock, CRC32(DATABASE())))"


def dialect_of(server: str) -> MysqlDialect:
    """The dialect of a server, by its version text."""
    return MARIADB if "mariadb" in server.lower() else DIALECT


def upgrade(names: TableNames, to: int | None = None, recreate: Collection[str] = ()) -> Plan[Statement, list[str]]:
    """Apply the missing migrations and return their names. A named lock keeps other processes out meanwhile.

    A CREATE commits by itself here. So each migration can be repeated (IF NOT EXISTS), and its version is stored when
    it is done: after an interruption the next upgrade continues where this one stopped."""
    lock = {"lock": f"rs-migrate:{names.bare[:30]}:"}
    found = yield Statement(DIALECT.fill(LOCK_QUERY, names), lock)
    if found[0][0] != 1:
        raise StoreUnavailable("another migration of these tables is under way; try again when it is over")
    try:
        applied = yield from _upgrade_locked(names, to, recreate)
    except Exception:  # not `finally`: a cancelled caller sends nothing more, and its connection is closed
        yield Statement(DIALECT.fill(UNLOCK_QUERY, names), lock)
        raise
    yield Statement(DIALECT.fill(UNLOCK_QUERY, names), lock)
    return applied


def _upgrade_locked(names: TableNames, to: int | None, recreate: Collection[str]) -> Plan[Statement, list[str]]:
    (server,) = (yield Statement("SELECT version()", {}))[0]
    dialect = dialect_of(server)
    if not (yield find_table(dialect, names, "meta")):
        yield Statement(dialect.fill(dialect.create_meta, names), {})
    return (yield from migrations.apply_missing(dialect, names, to, recreate))
