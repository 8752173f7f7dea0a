"""The DuckDB dialect, and its URL. Importing this file needs no driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from retrysafe.core.urls import safe_url
from retrysafe.errors import StoreURLError
from retrysafe.stores.base import Capabilities
from retrysafe.stores.sql.dialect import Dialect
from retrysafe.stores.sql.names import DEFAULT_PREFIX, TableNames, build_names, split_options

CAPABILITIES = Capabilities(
    name="duckdb",
    durable=True,
    shared=False,
    transactions=True,
    clock="host",
    outbox=True,
    lists_by_id=True,
    finds_keys=True,  # it keeps columns: to look for a key it reads the keys and nothing else
    backlog="scan",
    mixed_batches=True,
    has_install_id=True,
)

# The clock is the host's, read while the write lock is held. `:lock` is sent as 1 or 0: the locks are in this process
# (process.py), because no other process can have the file open.
DIALECT = Dialect(
    package="retrysafe.stores.duckdb",
    now=":now",
    empty="''::BLOB",
    least="least",
    greatest="greatest",
    parameter="${}",
    find_table=("SELECT 1 FROM duckdb_tables() WHERE database_name = current_database() AND table_name = '{bare}'"),
    find_columns=(
        "SELECT column_name FROM duckdb_columns() WHERE database_name = current_database() AND table_name = '{bare}'"
    ),
    try_lock=":lock",
    began="txid_current()",
    finds_keys=True,
)

_OPTIONS = frozenset({"table"})
_PARAMETER = re.compile(r"\$([a-z_]+)")


class DuckdbLocation(NamedTuple):
    path: str
    names: TableNames


def parse_url(url: str) -> DuckdbLocation:
    """`duckdb:///app.duckdb` (relative), `duckdb:////var/lib/app.duckdb` (absolute), `?table=` prefix."""
    plain, options = split_options(url, _OPTIONS)
    host, slash, path = plain.partition("://")[2].partition("/")
    if host or not slash or not path:
        raise StoreURLError(
            f"{safe_url(url)!r} names no file; write duckdb:///app.duckdb, or duckdb:////full/path/app.duckdb"
        )
    if "?" in path:
        raise StoreURLError(f"{safe_url(url)!r} has options DuckDB does not know here; there is table=")
    path = unquote(path)
    if path == ":memory:":
        raise StoreURLError(
            f"{safe_url(url)!r}: a database in memory is lost with its process; use memory:// or a file"
        )
    return DuckdbLocation(path, build_names(options.get("table", DEFAULT_PREFIX)))


@lru_cache(maxsize=512)
def find_parameters(sql: str) -> frozenset[str]:
    """The names of a statement's parameters. DuckDB refuses values that the statement does not use."""
    return frozenset(_PARAMETER.findall(sql))


def bind_values(sql: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in find_parameters(sql)}
