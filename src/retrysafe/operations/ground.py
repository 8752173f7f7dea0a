"""Where the local steps of a RetrySafe stand: on the store's own database, on another one, or nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from retrysafe.engine.sealing import Sealer
from retrysafe.errors import OperationError, UsageError
from retrysafe.stores.sql.names import Names, names
from retrysafe.transactions.effects import Known
from retrysafe.transactions.place import place, tables

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

Kind = Literal["store", "elsewhere", "none"]


@dataclass(slots=True)
class Ground:
    """store      the recovery point is in the user's commit: one row of the store's own table
    elsewhere  the user's database is not the store: a step leaves a receipt there, and the store learns later
    none       no `tx` was given: only foreign steps
    """

    kind: Kind
    names: Names
    sealer: Sealer
    known: Known
    """Which installation the store is, once somebody asked."""
    whose: str = ""
    checked: bool = False
    """Whether a transaction of the user's was seen to be on that installation."""
    forms: Literal["previous", "current"] = "previous"

    def needed(self, step: str) -> None:
        if self.kind == "none":
            raise OperationError(
                f"local step {step!r} has no transaction to run in: {self.whose} was given no `tx`; "
                "pass RetrySafe(url, tx=your_sessionmaker_or_pool), or make it a foreign step"
            )


def ground_of(safe: RetrySafe) -> Ground:
    if safe.tx is None:
        return Ground("none", names(), safe._sealer, Known(), repr(safe))
    try:
        found = tables(safe)
    except UsageError:
        return Ground("elsewhere", names(), safe._sealer, Known(), repr(safe), forms=safe.forms)
    if not isinstance(found, Names):  # MongoDB: its transactions carry receipts, not yet recovery points
        return Ground("elsewhere", names(), safe._sealer, Known(), repr(safe), forms=safe.forms)
    return Ground("store", found, safe._sealer, place(safe).known, repr(safe))
