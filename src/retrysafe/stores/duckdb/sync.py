"""The old module of `DuckdbStore`, kept for one release because the documents of 0.1 show it."""

from __future__ import annotations

from typing import Any

from retrysafe.core.deprecation import warn_renamed


def __getattr__(name: str) -> Any:
    if name != "DuckdbStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from retrysafe.stores.duckdb.store import DuckdbStore

    warn_renamed(f"{__name__}.{name}", f"retrysafe.stores.duckdb.{name}")
    return DuckdbStore
