"""MySQL's and MariaDB's words, and their URL. No driver is needed to read this file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from retrysafe.core.urls import redact_secrets, safe_url
from retrysafe.errors import StoreURLError
from retrysafe.stores.base import Capabilities
from retrysafe.stores.mysql.settings import CHARSET
from retrysafe.stores.sql.dialect import Dialect
from retrysafe.stores.sql.names import DEFAULT_PREFIX, TableNames, build_names, parse_number_option, split_options
from retrysafe.stores.sql.rows import COLUMNS

if TYPE_CHECKING:
    from ssl import SSLContext

CAPABILITIES = Capabilities(
    name="mysql", durable=True, shared=True, transactions=True, clock="store", outbox=True, lists_by_id=True
)

_COLUMNS = ", ".join(f"`{column}`" for column in COLUMNS)


@dataclass(frozen=True)
class MysqlDialect(Dialect):
    """There is no RETURNING: a write says how many rows it changed, and a text that needs to read what it wrote is
    two statements (talking.py). `key` is a reserved word."""

    collation: str = "utf8mb4_0900_bin"
    """What the server calls the collation that compares code by code, trailing spaces included."""

    def fill(self, text: str, names: TableNames) -> str:
        if not names.keys:  # the conditions of a list, put together by plans.py
            text = text.replace("state = 'released' AND point <> ''", "resting = 1")  # the column that has the index
        text = text.replace("{columns}", _COLUMNS).replace("{collation}", self.collation)
        return super().fill(text.replace("RETURNING 1", ""), quote_names(names))


# TIMESTAMPDIFF on UTC, not UNIX_TIMESTAMP: that one goes through the session's time zone, where an hour of every
# autumn comes twice. The clock is read once per statement, also while it waits for a row: a lease counts from when the
# statement began, and its owner counts from before it was sent (tests/faults/test_waited.py).
DIALECT = MysqlDialect(
    package="retrysafe.stores.mysql",
    now="coalesce(:now, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))",
    empty="x''",
    least="least",
    greatest="greatest",
    parameter="%({})s",
    # Locks are named for the whole server: the database is in the name.
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
"""For its tables. In everything else the two speak alike."""

RELEASE_LOCK = "DO RELEASE_LOCK(CONCAT('retrysafe:', CRC32(DATABASE()), ':', {}))"
"""GET_LOCK belongs to the session, not to the transaction: it is given back when that is over."""

_OPTIONS = frozenset({"table", "pool", "pool_timeout", "ssl", "ssl_ca", "socket"})
_DEFAULT_PORT = 3306


class MysqlLocation(NamedTuple):
    connect: dict[str, Any]
    """Arguments for the driver, the same for both."""
    names: TableNames
    pool: int
    pool_timeout: float
    url: str


def quote_names(names: TableNames) -> TableNames:
    """By backticks: what double quotes mean depends on the session's sql_mode."""
    return TableNames(*(text.replace('"', "`") for text in names))


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
    """`ssl=on` checks the server's certificate against the system's authorities, `ssl_ca=` against a file's."""
    wanted = options.get("ssl", "on" if "ssl_ca" in options else "off")
    if wanted not in ("on", "off"):
        raise StoreURLError(f"ssl={wanted!r} in {shown!r} is neither on nor off; write ssl=on, or ssl_ca=FILE")
    if wanted == "off":
        return None
    file = options.get("ssl_ca")
    if file is not None and not Path(file).is_file():
        raise StoreURLError(f"ssl_ca={file!r} in {shown!r} is no file; give the path of the authority's certificate")
    from ssl import create_default_context  # slow to import, and every transaction comes by this file

    return create_default_context(cafile=file)
