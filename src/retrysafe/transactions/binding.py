"""Which database `tx` is on, and where receipts go on it. Also whether a local step's recovery point can be in the same
commit.

    tables, load_receipts    the store's own tables, and the receipts for SQL or for MongoDB
    TxContext                what the flow of a transaction is told about its store
    TxBinding                whether an operation's local steps run on the store's database, on another one, or nowhere
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast
from weakref import WeakKeyDictionary

from retrysafe.core.moves import Grant
from retrysafe.core.ops import Claim
from retrysafe.core.records import Answer, Record
from retrysafe.engine.events import Events
from retrysafe.engine.sealing import Sealer
from retrysafe.errors import OperationError, UsageError
from retrysafe.stores.base import HasTables, NamesTables, Plan, provides
from retrysafe.stores.mongo.receipts import MongoDialect, MongoReceipts
from retrysafe.stores.mongo.settings import Collections
from retrysafe.stores.registry import find_backend
from retrysafe.stores.sql import receipts as sql
from retrysafe.stores.sql.dialect import Dialect
from retrysafe.stores.sql.names import TableNames, build_names
from retrysafe.stores.sql.receipts import LockedRead, TxMarker

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

MAX_RERUNS = 8
"""How often a body is run again after the database rolled it back. Each time another transaction succeeded."""


# Where the store's records are --------------------------------------------------------------------


def tables(safe: RetrySafe) -> TableNames | Collections:
    """The names of the store's tables. Raises UsageError for a store without tables that a transaction could write."""
    found: object = None
    if safe._url:
        backend = find_backend(safe._url)
        found = cast("NamesTables", backend).names(safe._url) if provides(backend, NamesTables) else None
    else:
        store = safe._sync or safe._async
        found = cast("HasTables", store).names if provides(store, HasTables) else None
    if isinstance(found, TableNames | Collections):
        return found
    raise UsageError(
        f"{safe!r} keeps its records where no transaction of yours can reach them, so no receipt can commit with "
        "your work; open it on your own database (postgresql://, mysql://, mongodb:// or sqlite:///), or use "
        "@safe.once or an operation"
    )


# Receipts for SQL and for MongoDB -----------------------------------------------------------------


class OpPlans(Protocol):
    """The store's operations as plans that can be carried out on the user's connection."""

    def plan_operation(self, op: Any) -> Plan[Any, Any]: ...


class TxReceipts(Protocol):
    """The statements or commands of a transaction, as plans: what SQL and MongoDB have in common."""

    @property
    def plans(self) -> OpPlans: ...
    def lock_and_read(self, claim: Claim) -> Plan[Any, LockedRead]: ...
    def build_claimed_record(self, claim: Claim, look: LockedRead, grant: Grant) -> Record: ...
    def mark_transaction(
        self, look: LockedRead | None = None, owner: bytes = b"", base: Record | None = None
    ) -> Plan[Any, TxMarker]: ...
    def was_committed(self, mark: TxMarker) -> Plan[Any, bool | None]: ...
    def forget_marker(self, owner: bytes) -> Plan[Any, None]: ...
    def is_other_transaction(self, claim: Claim, mark: TxMarker) -> Plan[Any, bool]: ...
    def write_receipt(
        self, claim: Claim, look: LockedRead, grant: Grant, answer: Answer, mark: TxMarker
    ) -> Plan[Any, Record | None]: ...


@lru_cache(maxsize=64)
def load_receipts(dialect: Dialect, names: TableNames | Collections) -> TxReceipts:
    """The receipts of one installation in one driver's parameter style; built once for each pair."""
    if isinstance(dialect, MongoDialect) and isinstance(names, Collections):
        return MongoReceipts(names)
    if isinstance(names, TableNames) and not isinstance(dialect, MongoDialect):
        return sql.load_receipts(dialect, names)
    where, there = ("MongoDB", "SQL") if isinstance(names, Collections) else ("SQL", "MongoDB")
    raise UsageError(
        f"the store is on {where} and the transaction on {there}, so no receipt can commit with your work; "
        "open the store on your own database, or use @safe.once or an operation"
    )


# The context of a transaction ---------------------------------------------------------------------


@dataclass(slots=True)
class InstallId:
    """Which installation a store is, remembered after the first `Install`. Empty until then."""

    value: str = ""


@dataclass(frozen=True, slots=True)
class TxContext:
    """Where receipts go, and how. `max_reruns` is 0 where the body cannot be run again (a `with` block)."""

    names: TableNames | Collections
    install_id: InstallId
    sealer: Sealer
    events: Events
    max_reruns: int = MAX_RERUNS


_known_stores: WeakKeyDictionary[RetrySafe, tuple[TableNames | Collections, InstallId]] = WeakKeyDictionary()


def build_tx_context(safe: RetrySafe, *, max_reruns: int = MAX_RERUNS) -> TxContext:
    known = _known_stores.get(safe)
    if known is None:
        known = _known_stores[safe] = (tables(safe), InstallId())
    names, install_id = known
    return TxContext(names, install_id, safe._sealer, safe.events, max_reruns)


# The binding of an operation's local steps --------------------------------------------------------

TxBindingKind = Literal["store", "elsewhere", "none"]


@dataclass(slots=True)
class TxBinding:
    """Where the local steps of an operation run.

    store      `tx` is on the store's database: the recovery point is in the user's commit, in the store's own table
    elsewhere  `tx` is on another database: a step leaves a receipt there, and the store is updated after the commit
    none       no `tx` was given: there can be only foreign steps
    """

    kind: TxBindingKind
    names: TableNames
    sealer: Sealer
    install_id: InstallId
    owner: str = ""
    database_checked: bool = False
    """Whether a transaction of the user's was seen to be on that installation."""
    forms: Literal["previous", "current"] = "previous"

    def require_tx(self, step: str) -> None:
        if self.kind == "none":
            raise OperationError(
                f"local step {step!r} has no transaction to run in: {self.owner} was given no `tx`; "
                "pass RetrySafe(url, tx=your_sessionmaker_or_pool), or make it a foreign step"
            )


def bind_tx(safe: RetrySafe) -> TxBinding:
    if safe.tx is None:
        return TxBinding("none", build_names(), safe._sealer, InstallId(), repr(safe))
    try:
        found = tables(safe)
    except UsageError:
        return TxBinding("elsewhere", build_names(), safe._sealer, InstallId(), repr(safe), forms=safe.forms)
    if not isinstance(found, TableNames):  # MongoDB: its transactions carry receipts, not yet recovery points
        return TxBinding("elsewhere", build_names(), safe._sealer, InstallId(), repr(safe), forms=safe.forms)
    return TxBinding("store", found, safe._sealer, build_tx_context(safe).install_id, repr(safe))
