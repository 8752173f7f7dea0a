"""Receipts of local steps in the user's database, where the store is another one: what is said of them, when they go.

A receipt tells whoever runs a step again that it was committed. Nobody asks for it after the operation has ended,
except an owner that was taken over long before and does not know it. So the receipts of a run go together, when

1.  the store has the record of that very run, and it is completed: a run that is unfinished keeps its receipts however
    old they are, and one that the store does not know may be another application's;
2.  and that was KEPT seconds ago. An owner commits nothing once its lease has been over for LATEST seconds
    (`check_not_late`), and it was over before anybody could end the operation in its place. KEPT is shorter than the
    hour that every store keeps a completed record for.

Which record a run belongs to is written down beside its first receipt, in a row of its own that older releases never
look at. See docs/decisions/0064-receipts-go.md.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import duration_to_micros
from retrysafe.engine.clock import clock
from retrysafe.errors import SchemaMissing
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import TableNames
from retrysafe.transactions.failures import ErrorClass, classify_error

if TYPE_CHECKING:
    from retrysafe.operations.run import OperationRun

Inside = Generator[Any, Any, Any]

RECORD = "record"
"""In the place of a step's name, which always begins with a number: this row says whose receipts a run's are."""
VERSION = "1"

KEPT = 1800.0
"""Seconds that receipts stay after the end of their operation."""
LATEST = 900.0
"""Seconds after its lease was over, by its own clock, until which an owner may still commit a step."""


@lru_cache(maxsize=16)
def build_receipt_texts(dialect: Dialect, names: TableNames) -> dict[str, str]:
    return dialect.load(names)


def run_receipt_statement(statements: dict[str, str], name: str, values: dict[str, Any]) -> Inside:
    """A statement about step receipts; their table may not have been made."""
    try:
        return (yield Statement(statements[name], values))
    except Exception as error:
        if classify_error(error) is ErrorClass.SCHEMA_MISSING:
            raise SchemaMissing("the database of `tx` has no retrysafe tables for receipts", "URL") from error
        raise


# Written by the steps -------------------------------------------------------------------------------------------------


def name_record(run: OperationRun, statements: dict[str, str]) -> Inside:
    """Beside the first receipt of a run: which record it belongs to. Only in the current forms, for the release before
    this one knows no LATEST."""
    if run.tx_binding.forms == "previous" or run.named:
        return
    whose = {"run": run.record.run, "step": RECORD}
    if not (yield from run_receipt_statement(statements, "receipt_step_find", whose)):
        told = f"{VERSION}:{run.record.id.hex()}"
        yield from run_receipt_statement(statements, "receipt_step_put", {**whose, "result": told, "now": None})


def check_not_late(run: OperationRun) -> None:
    """The last look before a receipt is written: an owner that was paused for very long may find none any more."""
    if clock() > run.lease.until + LATEST:
        raise run.lease_lost_error()


# Deleted by the worker ------------------------------------------------------------------------------------------------


class Named(NamedTuple):
    """A run that has receipts, and its record's id; empty where it is told in a form this code does not know."""

    run: bytes
    record: bytes
    created: int


START = Named(b"", b"", 0)


def read_named(row: Sequence[Any]) -> Named:
    run, told, created = row
    version, _, record = str(told).partition(":")
    return Named(bytes(run), bytes.fromhex(record) if version == VERSION else b"", int(created))


def list_named(dialect: Dialect, names: TableNames, after: Named, limit: int) -> Generator[Any, Any, list[Named]]:
    """Runs whose first receipt is old enough that their end may be: the oldest first, from `after` on."""
    values = {"age": duration_to_micros(KEPT), "after": after.created, "last": after.run, "limit": limit}
    rows = yield from run_receipt_statement(
        build_receipt_texts(dialect, names), "receipt_runs", {**values, "now": None}
    )
    return [read_named(row) for row in rows]


def delete_runs(dialect: Dialect, names: TableNames, runs: Sequence[bytes]) -> Inside:
    """All receipts of each of them, in one statement: who is interrupted leaves a run whole or nothing of it. In an
    order, so that two who do the same wait for each other in a line."""
    for run in sorted(runs):
        yield from run_receipt_statement(build_receipt_texts(dialect, names), "receipt_run_delete", {"run": run})


def may_go(record: Record | None, run: bytes, now: int) -> bool:
    """Whether nobody will ask for the receipts of this run again."""
    if record is None or record.run != run:
        return False
    return record.state is State.COMPLETED and now - record.completed >= duration_to_micros(KEPT)


def is_orphan(record: Record | None, run: bytes) -> bool:
    """Whether the store knows nothing of this run: it was reaped or erased before its receipts went, or the receipts
    are those of an application with another store."""
    return record is None or record.run != run
