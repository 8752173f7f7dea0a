"""The SQL Server dialect, and its URL. Importing this file needs no driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from retrysafe.core.urls import redact_secrets, safe_url
from retrysafe.errors import StoreURLError
from retrysafe.stores.base import Capabilities
from retrysafe.stores.sql.dialect import Dialect
from retrysafe.stores.sql.names import DEFAULT_PREFIX, TableNames, build_names, parse_number_option, split_options
from retrysafe.stores.sql.rows import COLUMNS

CAPABILITIES = Capabilities(
    name="mssql",
    durable=True,
    shared=True,
    transactions=True,
    clock="store",
    outbox=True,
    lists_by_id=True,
    backlog="index",
    mixed_batches=True,
    has_install_id=True,
)

COLLATION = "Latin1_General_100_BIN2"
"""A binary collation. Even so `=` pads texts with spaces: statements also compare the lengths where that matters."""

CLOCK_DECLARATION = (
    "DECLARE @now bigint = "
    "coalesce(%(now)s, DATEDIFF_BIG(MICROSECOND, CAST('19700101' AS datetime2), SYSUTCDATETIME()));"
)
"""Stands before every batch that uses the time (protocol.py). The clock is read once per batch."""

_COLUMNS = ", ".join(f"[{column}]" for column in COLUMNS)
_LEAST_GREATEST = re.compile(r"\{(least|greatest)\}\(")
_LARGE_VALUE = re.compile(r":(body|input|progress|payload)\b")
_COMPARED_COLUMN = re.compile(r"\b(WHERE|AND|ON)(\s+)(id|token|run|step|fingerprint) = :(\w+)")
_COMPARED_NAMESPACE = re.compile(r"\b(OR|AND)(\s+)namespace = :(\w+)")
_LIST_CONDITION = re.compile(r"\b(namespace|kind|scope) = :\1\b")


@dataclass(frozen=True)
class MssqlDialect(Dialect):
    """RETURNING is written OUTPUT, and stands before WHERE. LEAST and GREATEST came with SQL Server 2022; IIF works
    everywhere."""

    def fill(self, text: str, names: TableNames) -> str:
        # `=` pads the shorter value, bytes with zeros and texts with spaces: a token with a zero byte behind it would
        # pass the fence. The lengths are compared in conditions only: after SET the same text is an assignment.
        text = _COMPARED_COLUMN.sub(r"\1\2\3 = :\4 AND DATALENGTH(\3) = DATALENGTH(:\4)", text)
        if names.keys:
            text = _COMPARED_NAMESPACE.sub(r"\1\2(namespace = :\3 AND DATALENGTH(namespace) = DATALENGTH(:\3))", text)
        else:  # the conditions of a list, built by plans.py
            text = _LIST_CONDITION.sub(r"\1 = :\1 AND DATALENGTH(\1) = DATALENGTH(:\1)", text)
            text = text.replace("id > :after", "id > CAST(:after AS varbinary(32))")
        text = text.replace("point <> ''", "DATALENGTH(point) > 0").replace(
            "AND point = '')", "AND DATALENGTH(point) = 0)"
        )
        text = expand_least_greatest(_returning_to_output(text)).replace("{columns}", _COLUMNS)
        # These values may be long. The cast names their type, so that the server does not guess it from the literal.
        text = _LARGE_VALUE.sub(r"CAST(:\1 AS varbinary(max))", text)
        return super().fill(text.replace("{collation}", COLLATION), bracket_names(names))


DIALECT = MssqlDialect(
    package="retrysafe_mssql",
    now="@now",
    empty="0x",
    least="least",
    greatest="greatest",
    parameter="%({})s",
    began="CURRENT_TRANSACTION_ID()",
    create_meta=(
        "CREATE TABLE {meta} (name nvarchar(64) COLLATE {collation} NOT NULL PRIMARY KEY, "
        "value nvarchar(max) COLLATE {collation} NOT NULL)"
    ),
    put_version=(
        "UPDATE {meta} SET value = '{version}' WHERE name = 'version'\nGO\n"
        "INSERT INTO {meta} (name, value) SELECT 'version', '{version}' "
        "WHERE NOT EXISTS (SELECT 1 FROM {meta} WHERE name = 'version')"
    ),
    find_table="SELECT 1 WHERE OBJECT_ID('{table}', 'U') IS NOT NULL",
)


def bracket_names(names: TableNames) -> TableNames:
    """Quote names by brackets. The meaning of double quotes depends on the session's QUOTED_IDENTIFIER."""
    return TableNames(*(re.sub(r'"(\w+)"', r"[\1]", text) for text in names))


def _returning_to_output(text: str) -> str:
    """Rewrite `RETURNING 1` of an update as OUTPUT."""
    if "RETURNING 1" not in text:
        return text
    return re.sub(r"\bWHERE\b", "OUTPUT inserted.id\nWHERE", text.replace("RETURNING 1", ""), count=1)


def expand_least_greatest(text: str) -> str:
    """Rewrite `{least}(a, b)` as `IIF(a < b, a, b)`, from the inside out."""
    while True:
        found = list(_LEAST_GREATEST.finditer(text))
        if not found:
            return text
        start = found[-1]
        end, comma = _find_closing(text, start.end())
        one, other = text[start.end() : comma].strip(), text[comma + 1 : end].strip()
        sign = "<" if start.group(1) == "least" else ">"
        text = f"{text[: start.start()]}IIF({one} {sign} {other}, {one}, {other}){text[end + 1 :]}"


def _find_closing(text: str, at: int) -> tuple[int, int]:
    """The position where the parenthesis open at `at` closes, and the position of the comma between its arguments."""
    depth, comma = 0, -1
    for place in range(at, len(text)):
        if text[place] == ")" and depth == 0:
            return place, comma
        if text[place] == "," and depth == 0:
            comma = place
        depth += {"(": 1, ")": -1}.get(text[place], 0)
    raise ValueError(f"a parenthesis is not closed in: {text}")


# The URL ----------------------------------------------------------------------------------------

_OPTIONS = frozenset({"table", "schema", "pool", "pool_timeout", "encrypt"})
_ENCRYPT_VALUES = ("off", "request", "require")


class MssqlLocation(NamedTuple):
    connect: dict[str, Any]
    """Arguments for the driver."""
    names: TableNames
    schema: str
    pool: int
    pool_timeout: float
    url: str


def parse_url(url: str) -> MssqlLocation:
    """`mssql://user:password@host:1433/database`, with `table=`, `schema=`, `pool=`, `pool_timeout=` and
    `encrypt=off|request|require`."""
    plain, options = split_options(url, _OPTIONS)
    parts, shown = urlsplit(plain), safe_url(url)
    database = unquote(parts.path.strip("/"))
    if not database or "/" in database or not parts.hostname:
        raise StoreURLError(f"{shown!r} names no database; write mssql://user:password@host:1433/database")
    if parts.query:
        known = ", ".join(f"{name}=" for name in sorted(_OPTIONS))
        raise StoreURLError(f"{shown!r} has options that are not known; there are {known}")
    try:
        port = parts.port or 1433
    except ValueError as error:
        raise StoreURLError(
            f"{shown!r}: {redact_secrets(str(error), url)}; write mssql://user@host:1433/database"
        ) from error
    connect: dict[str, Any] = {
        "server": parts.hostname,
        "port": str(port),
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database,
    }
    encrypt = options.get("encrypt")
    if encrypt is not None:
        if encrypt not in _ENCRYPT_VALUES:
            raise StoreURLError(f"encrypt={encrypt!r} in {shown!r} is none of {', '.join(_ENCRYPT_VALUES)}")
        connect["encryption"] = encrypt
    tables = build_names(options.get("table", DEFAULT_PREFIX), options.get("schema", ""))
    pool, pool_timeout = (
        int(parse_number_option(options, "pool", 10)),
        parse_number_option(options, "pool_timeout", 5.0),
    )
    return MssqlLocation(connect, tables, options.get("schema", ""), pool, pool_timeout, url)
