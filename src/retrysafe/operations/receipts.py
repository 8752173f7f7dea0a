"""Receipts of local steps in the user's database, where the store is another database, and when they are deleted.

A receipt tells a later attempt that the step was committed. After the end of the operation only an owner that was taken
over long before, and does not know it, can still read a receipt. So all receipts of a run are deleted together, if

1.  the store has the record of that very run, and it is completed. An unfinished run keeps its receipts, however old
    they are. A run that the store does not know may belong to another application;
2.  and it was completed KEPT_SECONDS ago. An owner commits nothing once its lease has been over for LATE_COMMIT_SECONDS
    (`check_not_late`), and the lease was over before another attempt could end the operation. KEPT_SECONDS is shorter
    than the hour for which every store keeps a completed record.

A row beside the first receipt names the record of the run. Older releases never read that row.
See docs/decisions/0064-receipts-go.md.
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

InsideTx = Generator[Any, Any, Any]
"""A flow inside an open transaction: it yields statements."""

RECORD_ROW = "record"
"""Stands in the place of a step's name, which always begins with a number. This row names the record of a run."""
RECORD_ROW_VERSION = "1"

KEPT_SECONDS = 1800.0
"""How long receipts are kept after the end of their operation."""
LATE_COMMIT_SECONDS = 900.0
"""How long after the end of its lease, by its own clock, an owner may still commit a step."""


@lru_cache(maxsize=16)
def build_receipt_texts(dialect: Dialect, names: TableNames) -> dict[str, str]:
    return dialect.load(names)


def run_receipt_statement(statements: dict[str, str], name: str, values: dict[str, Any]) -> InsideTx:
    """Run a statement on step receipts. Raises SchemaMissing if their table does not exist."""
    try:
        return (yield Statement(statements[name], values))
    except Exception as error:
        if classify_error(error) is ErrorClass.SCHEMA_MISSING:
            raise SchemaMissing("the database of `tx` has no retrysafe tables for receipts", "URL") from error
        raise


# Written by the steps -------------------------------------------------------------------------------------------------


def name_record(run: OperationRun, statements: dict[str, str]) -> InsideTx:
    """Write the row that names the record of the run, beside its first receipt. Only with forms="current": the release
    before this one does not keep to LATE_COMMIT_SECONDS."""
    if run.tx_binding.forms == "previous" or run.named:
        return
    whose = {"run": run.record.run, "step": RECORD_ROW}
    if not (yield from run_receipt_statement(statements, "receipt_step_find", whose)):
        text = f"{RECORD_ROW_VERSION}:{run.record.id.hex()}"
        yield from run_receipt_statement(statements, "receipt_step_put", {**whose, "result": text, "now": None})


def check_not_late(run: OperationRun) -> None:
    """Raise LeaseLost just before a receipt is written, if the owner was paused so long that earlier receipts may have
    been deleted."""
    if clock() > run.lease.until + LATE_COMMIT_SECONDS:
        raise run.lease_lost_error()


# Deleted by the worker ------------------------------------------------------------------------------------------------


class NamedRun(NamedTuple):
    """A run that has receipts, and the id of its record. The id is empty if this code does not know the row's
    version."""

    run: bytes
    record: bytes
    created: int


BEFORE_ALL = NamedRun(b"", b"", 0)
"""The cursor of the first page."""


def parse_named_run(row: Sequence[Any]) -> NamedRun:
    run, text, created = row
    version, _, record = str(text).partition(":")
    return NamedRun(bytes(run), bytes.fromhex(record) if version == RECORD_ROW_VERSION else b"", int(created))


def list_named_runs(
    dialect: Dialect, names: TableNames, after: NamedRun, limit: int
) -> Generator[Any, Any, list[NamedRun]]:
    """Runs whose first receipt is older than KEPT_SECONDS, the oldest first, after `after`."""
    values = {"age": duration_to_micros(KEPT_SECONDS), "after": after.created, "last": after.run, "limit": limit}
    rows = yield from run_receipt_statement(
        build_receipt_texts(dialect, names), "receipt_runs", {**values, "now": None}
    )
    return [parse_named_run(row) for row in rows]


def delete_runs(dialect: Dialect, names: TableNames, runs: Sequence[bytes]) -> InsideTx:
    """Delete all receipts of each run, one statement per run, so that an interruption leaves all receipts of a run or
    none. The runs are sorted, so that two workers that do the same cannot deadlock."""
    for run in sorted(runs):
        yield from run_receipt_statement(build_receipt_texts(dialect, names), "receipt_run_delete", {"run": run})


def can_delete_receipts(record: Record | None, run: bytes, now: int) -> bool:
    """True if no attempt will read the receipts of this run again."""
    if record is None or record.run != run:
        return False
    return record.state is State.COMPLETED and now - record.completed >= duration_to_micros(KEPT_SECONDS)


def is_orphan(record: Record | None, run: bytes) -> bool:
    """True if the store does not have this run: its record was reaped or erased before its receipts were deleted, or
    the receipts belong to an application with another store."""
    return record is None or record.run != run
