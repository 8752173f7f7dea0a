"""The URL schemes of the stores, without importing a store."""

from __future__ import annotations

SCHEMES = {
    "memory": "retrysafe.stores.memory",
    "sqlite": "retrysafe.stores.sqlite",
    "postgresql": "retrysafe.stores.postgres",
    "postgres": "retrysafe.stores.postgres",
    "mysql": "retrysafe.stores.mysql",
    "mariadb": "retrysafe.stores.mysql",
    "mongodb": "retrysafe.stores.mongo",
    "mongodb+srv": "retrysafe.stores.mongo",
    "redis": "retrysafe.stores.redis",
    "rediss": "retrysafe.stores.redis",
    "valkey": "retrysafe.stores.redis",
    "redis+cluster": "retrysafe.stores.redis",
    "rediss+cluster": "retrysafe.stores.redis",
    "valkey+cluster": "retrysafe.stores.redis",
    "redis+sentinel": "retrysafe.stores.redis",
    "rediss+sentinel": "retrysafe.stores.redis",
    "valkey+sentinel": "retrysafe.stores.redis",
    "dynamodb": "retrysafe.stores.dynamodb",
    "duckdb": "retrysafe.stores.duckdb",
}
"""URL scheme, and the module that has its `backend`. They are not entry points as well: reading those is slow."""

DISTRIBUTIONS = {"mssql": "retrysafe-mssql"}
"""URL scheme, and the distribution of this project that has its store. They are built in distributions/."""

OTHER_PROTOCOLS = frozenset({"http", "https", "file", "ftp"})


def is_store_scheme(scheme: str) -> bool:
    """Whether a URL with this scheme can be that of a store. Stores of other packages have schemes of their own."""
    name = scheme.lower()
    if name in SCHEMES or name in DISTRIBUTIONS:
        return True
    return name.replace("+", "").isalnum() and name not in OTHER_PROTOCOLS
