"""Where the local steps of a RetrySafe stand: on the store's own database, on another one, or nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from retrysafe.engine.sealing import Sealer
from retrysafe.errors import OperationError, UsageError
from retrysafe.stores.sql.names import TableNames, build_names
from retrysafe.transactions.effects import InstallId
from retrysafe.transactions.tx_context import build_tx_context, tables

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

TxBindingKind = Literal["store", "elsewhere", "none"]


@dataclass(slots=True)
class TxBinding:
    """store      the recovery point is in the user's commit: one row of the store's own table
    elsewhere  the user's database is not the store: a step leaves a receipt there, and the store learns later
    none       no `tx` was given: only foreign steps
    """

    kind: TxBindingKind
    names: TableNames
    sealer: Sealer
    install_id: InstallId
    """Which installation the store is, once somebody asked."""
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
