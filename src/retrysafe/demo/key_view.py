"""One key as the page shows it: its record, why it is in its state, and the steps that have run.

The page links to the same key in the console.
"""

from __future__ import annotations

from typing import Any

from retrysafe.console import Console, Operator
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Record
from retrysafe.core.times import format_time
from retrysafe.engine.safe import RetrySafe
from retrysafe.engine.why import explain
from retrysafe.operations.journal import OperationJournal, build_ledger


async def describe_record(safe: RetrySafe, record_id: bytes) -> dict[str, Any] | None:
    reply = await safe.async_store.execute(Lookup(record_id))
    return None if reply.record is None else summarize(reply.record, reply.now)


def summarize(record: Record, now: int) -> dict[str, Any]:
    why = explain(record, now)
    journal = OperationJournal.decode(record.progress)
    ledger = [{"step": entry["step"], "state": entry["state"]} for entry in build_ledger(journal)]
    answer = record.answer
    return {
        "key": record.key,
        "id": record.id.hex(),
        "scope": record.scope,
        "target": record.target,
        "state": why.state,
        "attempt": record.attempt,
        "created": format_time(record.created),
        "completed": format_time(record.completed) if record.completed else "",
        "because": why.because,
        "next_retry": why.next_retry,
        "by_itself": why.by_itself,
        "steps": ledger,
        "answer": {"status": answer.status, "body": answer.body.decode(errors="replace")} if answer else None,
    }


def make_console(safe: RetrySafe) -> Console:
    """The console, to look only: nothing can be changed from the demo, so every visitor of this machine may see it."""
    return Console(safe, authenticate=lambda request: Operator("demo"))
