"""Receipts for whatever database the user's transaction is on: SQL's statements, or MongoDB's commands. The flow knows
only what they have in common.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

from retrysafe.core.moves import Grant
from retrysafe.core.ops import Claim
from retrysafe.core.records import Answer, Record
from retrysafe.errors import UsageError
from retrysafe.stores.base import Plan
from retrysafe.stores.mongo.receipts import MongoDialect, MongoReceipts
from retrysafe.stores.mongo.settings import Home
from retrysafe.stores.sql import receipts as sql
from retrysafe.stores.sql.dialect import Dialect
from retrysafe.stores.sql.names import Names
from retrysafe.stores.sql.receipts import Look, Mark


class OpPlans(Protocol):
    def of(self, op: Any) -> Plan[Any, Any]: ...


class Receipts(Protocol):
    """What a transaction needs to say, as plans."""

    @property
    def plans(self) -> OpPlans: ...
    def look(self, claim: Claim) -> Plan[Any, Look]: ...
    def begun(self, claim: Claim, look: Look, grant: Grant) -> Record: ...
    def mark(self, look: Look | None = None) -> Plan[Any, Mark]: ...
    def committed(self, mark: Mark) -> Plan[Any, bool | None]: ...
    def parted(self, claim: Claim, mark: Mark) -> Plan[Any, bool]: ...
    def write(self, claim: Claim, look: Look, grant: Grant, answer: Answer, mark: Mark) -> Plan[Any, Record | None]: ...


@lru_cache(maxsize=64)
def receipts(dialect: Dialect, place: Names | Home) -> Receipts:
    """Loaded once per installation and parameter style."""
    if isinstance(dialect, MongoDialect) and isinstance(place, Home):
        return MongoReceipts(place)
    if isinstance(place, Names) and not isinstance(dialect, MongoDialect):
        return sql.receipts(dialect, place)
    where, there = ("MongoDB", "SQL") if isinstance(place, Home) else ("SQL", "MongoDB")
    raise UsageError(
        f"the store is on {where} and the transaction on {there}, so no receipt can commit with your work; "
        "open the store on your own database, or use @safe.once or an operation"
    )
