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
from retrysafe.stores.mongo.settings import Collections
from retrysafe.stores.sql import receipts as sql
from retrysafe.stores.sql.dialect import Dialect
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sql.receipts import LockedRead, TxMarker


class OpPlans(Protocol):
    def plan_operation(self, op: Any) -> Plan[Any, Any]: ...


class TxReceipts(Protocol):
    """What a transaction needs to say, as plans."""

    @property
    def plans(self) -> OpPlans: ...
    def lock_and_read(self, claim: Claim) -> Plan[Any, LockedRead]: ...
    def build_claimed_record(self, claim: Claim, look: LockedRead, grant: Grant) -> Record: ...
    def mark_transaction(self, look: LockedRead | None = None) -> Plan[Any, TxMarker]: ...
    def committed(self, mark: TxMarker) -> Plan[Any, bool | None]: ...
    def is_other_transaction(self, claim: Claim, mark: TxMarker) -> Plan[Any, bool]: ...
    def write_receipt(
        self, claim: Claim, look: LockedRead, grant: Grant, answer: Answer, mark: TxMarker
    ) -> Plan[Any, Record | None]: ...


@lru_cache(maxsize=64)
def load_receipts(dialect: Dialect, names: TableNames | Collections) -> TxReceipts:
    """Loaded once per installation and parameter style."""
    if isinstance(dialect, MongoDialect) and isinstance(names, Collections):
        return MongoReceipts(names)
    if isinstance(names, TableNames) and not isinstance(dialect, MongoDialect):
        return sql.load_receipts(dialect, names)
    where, there = ("MongoDB", "SQL") if isinstance(names, Collections) else ("SQL", "MongoDB")
    raise UsageError(
        f"the store is on {where} and the transaction on {there}, so no receipt can commit with your work; "
        "open the store on your own database, or use @safe.once or an operation"
    )
