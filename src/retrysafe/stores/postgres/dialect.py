"""PostgreSQL's words, and its URL. No driver is needed to read this file."""

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
    lists_by_id=True,
)

_BEGAN = "(extract(epoch FROM transaction_timestamp()) * 1000000)::bigint"
_LOCK_TIMEOUT_CTE = "patience AS (SELECT set_config('lock_timeout', '2000', true))"

# statement_timestamp() is one moment for the whole statement, also while it waits for a row: a claimant that
# waited judges a lease by when it asked, which can only make it more careful. Its own lease counts from then, too: not
# from before it was sent, which is where its owner counts from (tests/faults/test_waited.py).
DIALECT = Dialect(
    package="retrysafe.stores.postgres",
    now="coalesce(CAST(:now AS bigint), (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)",
    empty="''::bytea",
    least="least",
    greatest="greatest",
    # Every statement of a claim carries it: a caller gets an answer while somebody else holds the row (I28). So does
    # every write of an owner: a heartbeat that waited without end would keep others from beating.
    patience=_LOCK_TIMEOUT_CTE,
    limit=_LOCK_TIMEOUT_CTE,
    brief="patience AS (SELECT set_config('lock_timeout', '100', true))",
    parameter="%({})s",
    try_lock="pg_try_advisory_xact_lock(CAST(:lock AS bigint))",
    began=_BEGAN,
    note_began=f"CAST(set_config('retrysafe.began', CAST({_BEGAN} AS text), false) AS bigint)",
)

_OPTIONS = frozenset({"table", "schema", "pool", "pool_timeout"})

# Settings of the client's library, not of the session: a dead peer is noticed in seconds instead of minutes.
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
    """`postgresql://user:password@host:port/db`, our own options `table=`, `schema=`, `pool=`, `pool_timeout=`."""
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
