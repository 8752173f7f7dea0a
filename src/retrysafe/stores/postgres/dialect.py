"""The SQL dialect of PostgreSQL, and its URL. Imports no driver."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.core.urls import safe_url
from retrysafe.errors import StoreURLError
from retrysafe.stores.base import Capabilities
from retrysafe.stores.sql.dialect import Dialect
from retrysafe.stores.sql.names import DEFAULT_PREFIX, TableNames, build_names, parse_number_option, split_options

CAPABILITIES = Capabilities(
    name="postgres",
    durable=True,
    shared=True,
    transactions=True,
    clock="store",
    outbox=True,
    wakes=True,
    mixed_batches=True,
    max_in_flight=2,  # the server executes one batch while this side packs the other, or while one waits for a lock
    lists_by_id=True,
    backlog="index",
    has_install_id=True,
)

_LOCK_TIMEOUT_CTE = "patience AS (SELECT set_config('lock_timeout', '2000', true))"

# statement_timestamp() is the start of the statement, also if the statement waits for a row. A claim that waited
# compares a lease with the time of its own start, which can only refuse more. Its own lease counts from that start too,
# and its owner counts from before it sent the statement (tests/faults/test_waited.py).
DIALECT = Dialect(
    package="retrysafe.stores.postgres",
    now="coalesce(CAST(:now AS bigint), (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)",
    empty="''::bytea",
    least="least",
    greatest="greatest",
    # Every statement of a claim has this limit: a caller gets an answer while another transaction holds the row (I28).
    # Every write of an owner has it too: a heartbeat that waited for ever would delay other heartbeats.
    patience=_LOCK_TIMEOUT_CTE,
    limit=_LOCK_TIMEOUT_CTE,
    # A renewal waits for a two-hundredth of its lease, from 5 to 100 ms: other leases share its thread and connection.
    brief="patience AS (SELECT set_config('lock_timeout', least(100, greatest(5, :lease / 200000))::text, true))",
    parameter="%({})s",
    find_table="SELECT 1 WHERE to_regclass('{table}') IS NOT NULL",
    find_columns=(
        "SELECT attname FROM pg_catalog.pg_attribute "
        "WHERE attrelid = to_regclass('{table}') AND attnum > 0 AND NOT attisdropped"
    ),
    try_lock="pg_try_advisory_xact_lock(CAST(:lock AS bigint))",
    # Every writing transaction gets a number anyway, and by it any connection can ask what became of the transaction.
    began="txid_current()",
)

_OPTIONS = frozenset({"table", "schema", "pool", "pool_timeout"})

# Settings of libpq, not of the session: a dead server is noticed within seconds instead of minutes.
_LIBPQ_DEFAULTS = {
    "connect_timeout": "5",
    "tcp_user_timeout": "10000",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
}


class PostgresLocation(NamedTuple):
    conninfo: str
    names: TableNames
    pool: int
    pool_timeout: float
    url: str


def parse_url(url: str) -> PostgresLocation:
    """Read `postgresql://user:password@host:port/db` with our options `table=`, `schema=`, `pool=`, `pool_timeout=`."""
    plain, options = split_options(url, _OPTIONS)
    rest = plain.partition("://")[2]
    if not rest:
        raise StoreURLError(f"{safe_url(url)!r} names no server; write postgresql://user@host:5432/database")
    tables = build_names(options.get("table", DEFAULT_PREFIX), options.get("schema", ""))
    given = {pair.partition("=")[0] for pair in plain.partition("?")[2].split("&")}
    extra = "&".join(f"{name}={value}" for name, value in _LIBPQ_DEFAULTS.items() if name not in given)
    conninfo = f"postgresql://{rest}{'&' if '?' in rest else '?'}{extra}"
    return PostgresLocation(
        conninfo,
        tables,
        int(parse_number_option(options, "pool", 10)),
        parse_number_option(options, "pool_timeout", 5.0),
        url,
    )
