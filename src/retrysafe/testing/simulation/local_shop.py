"""Local steps under simulation: operations that write to the user's own database, with the store in it or elsewhere.

The rules: what a step writes is there once for each run (I16), and the recovery point says so if and only if it is
there (I15). Where the store is elsewhere, the receipt takes the place of the recovery point.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from retrysafe.core.keys import Key
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.operations import Operation, Undo
from retrysafe.operations.journal import OperationJournal
from retrysafe.testing.simulation.application import AppHost, Handler, Purchase
from retrysafe.testing.simulation.database import NAMES, SimulatedDatabase
from retrysafe.testing.simulation.database_store import open_database_with_store
from retrysafe.testing.simulation.fleet import PURCHASE
from retrysafe.testing.simulation.operators import ImpatientOperator, check_operator
from retrysafe.testing.simulation.outcome import Outcome
from retrysafe.testing.simulation.replies import ClientReply, reply_safely
from retrysafe.testing.simulation.scenario import Scenario

KINDS = ("local", "local_first", "local_answer", "local_twice", "local_saga", "rows_saga")
"""`local`: a charge, then a row; `local_first` the other way round; `local_answer`: the last step's commit is the
answer's, too; `local_twice`: one step called twice; `local_saga`: a row and a charge that are undone for some;
`rows_saga`: three rows, which an operator may undo at any time."""
NOTHING_TO_UNDO = " (nothing to undo)"
STEPS = ("record", "record_answer", "reserve", "reserve_second", "first", "second", "third")


def deploy(node: AppHost) -> Handler:
    """Start the shop on one host: only what this history's purchases need."""
    node.safe.tx = node.actors["database"]
    node.safe.forms = node.actors["database"].choose_forms(node.host.name)
    operations = {kind: DECLARE[kind](node) for kind in KINDS if kind in node.kinds}

    async def handle(purchase: Purchase) -> ClientReply:
        return await reply_safely(operations[purchase.kind](purchase.name, key=Key(purchase.key, "account")))

    return handle


async def undo_row(tx: Any, purchase: str, name: str, result: str | None) -> None:
    """An undo as our documents want it. Without a result the step may not have happened: it looks (I23)."""
    happened = result is not None or await tx.has(purchase, name)
    await tx.write(purchase, f"undo {name}" if happened else f"undo {name}{NOTHING_TO_UNDO}")


def declare_steps(node: AppHost, name: str) -> tuple[Operation, Any, Any]:
    """An operation with a charge and a local step."""
    operation = node.safe.operation(name)

    @operation.foreign(timeout=20, key_life=80_000)
    async def charge(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    @operation.local
    async def record(tx: Any, purchase: str, row: str = "record") -> str:
        await tx.write(purchase, row)
        return row

    return operation, charge, record


def declare_local(node: AppHost) -> Any:
    operation, charge, record = declare_steps(node, "local")

    @operation.body
    async def place(purchase: str) -> Answer:
        number = await charge(purchase)
        return Answer(201, {"charge": number, "row": await record(purchase)})

    return operation


def declare_first(node: AppHost) -> Any:
    operation, charge, record = declare_steps(node, "local_first")

    @operation.body
    async def place(purchase: str) -> Answer:
        row = await record(purchase)
        return Answer(201, {"charge": await charge(purchase), "row": row})

    return operation


def declare_twice(node: AppHost) -> Any:
    operation, charge, record = declare_steps(node, "local_twice")

    @operation.body
    async def place(purchase: str) -> Answer:
        row = await record(purchase, "record")
        number = await charge(purchase)
        return Answer(201, {"charge": number, "rows": [row, await record(purchase, "record again")]})

    return operation


def declare_answer(node: AppHost) -> Any:
    operation, charge, _ = declare_steps(node, "local_answer")

    @operation.local
    async def record_answer(tx: Any, purchase: str, number: int) -> Answer:
        await tx.write(purchase, "record_answer")
        return Answer(201, {"charge": number})

    @operation.body
    async def place(purchase: str) -> Answer:
        answer: Answer = await record_answer(purchase, await charge(purchase))
        return answer

    return operation


def declare_saga(node: AppHost) -> Any:
    saga = node.safe.operation("local_saga")

    async def release(tx: Any, purchase: str, result: str | None = None) -> None:
        await undo_row(tx, purchase, "reserve", result)

    async def release_second(tx: Any, purchase: str, result: str | None = None) -> None:
        await undo_row(tx, purchase, "reserve_second", result)

    async def refund(purchase: str, result: int | None = None, *, key: str) -> None:
        await node.provider.charge(purchase, key, kind="refund")

    @saga.local(undo=release)
    async def reserve(tx: Any, purchase: str) -> str:
        await tx.write(purchase, "reserve")
        return "reserved"

    @saga.foreign(timeout=20, key_life=80_000, undo=refund)
    async def charge_first(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    @saga.local(undo=release_second)
    async def reserve_second(tx: Any, purchase: str) -> str:
        await tx.write(purchase, "reserve_second")
        return "reserved"

    @saga.foreign(timeout=20, key_life=80_000)
    async def ship(purchase: str, *, key: str) -> str:
        if purchase.endswith("2"):
            raise Undo(402, {"shipped": False})
        return "shipped"

    @saga.body
    async def place_and_ship(purchase: str) -> Answer:
        await reserve(purchase)
        charged = await charge_first(purchase)
        await reserve_second(purchase)
        return Answer(201, {"charge": charged, "shipped": await ship(purchase)})

    return saga


def declare_rows(node: AppHost) -> Any:
    rows = node.safe.operation("rows_saga")

    def declare(name: str) -> Any:
        async def undo(tx: Any, purchase: str, result: str | None = None) -> None:
            await undo_row(tx, purchase, name, result)

        async def write(tx: Any, purchase: str) -> str:
            await tx.write(purchase, name)
            return name

        write.__name__ = name
        return rows.local(undo=undo)(write)

    steps = [declare(name) for name in ("first", "second", "third")]

    @rows.body
    async def write_all(purchase: str) -> Answer:
        written = [await step(purchase) for step in steps]
        if purchase.endswith("3"):
            raise Undo(402, {"undone": True})
        return Answer(303, {"rows": written})  # nothing is charged

    return rows


DECLARE: dict[str, Callable[[AppHost], Any]] = {
    "local": declare_local,
    "local_first": declare_first,
    "local_answer": declare_answer,
    "local_twice": declare_twice,
    "local_saga": declare_saga,
    "rows_saga": declare_rows,
}


async def decide(node: AppHost, record: Record) -> str:
    """A person goes on with an operation that was given up: all its steps may be repeated."""
    await node.safe.operations[record.target].resume_id(record.id, because="every step takes its key again")
    return "resumed"


# Checks ---------------------------------------------------------------------------------------------------------------


def check_rows(outcome: Outcome) -> Iterator[str]:
    """Each row is there once, and so is its undo; a client that was told 2xx has its rows, one that was told that it
    was undone has none that are left (I16)."""
    for purchase in outcome.purchases:
        rows = count_rows(outcome, purchase.name)
        for what, count in rows.items():
            if count > 1:
                yield f"I16 phase once: {purchase.name} ({purchase.kind}) has {count} rows {what!r}"
        left = {what for what in rows if not what.startswith("undo ")} - undone(rows)
        for what in undone(rows) - set(rows):
            yield f"I23 undo: {purchase.name} has an undo of {what!r}, which was never there"
        for reply in outcome.replies.get(purchase.name, ()):
            if reply.status < 400 and left != EXPECTED_ROWS[purchase.kind]:
                yield f"told the truth: {purchase.name} ({purchase.kind}) was told {reply.status}, its rows are {rows}"
            if reply.status in (402, 410) and left:
                yield f"told the truth: {purchase.name} was told {reply.status}, and {sorted(left)} are left"


EXPECTED_ROWS = {
    "local": {"record"},
    "local_first": {"record"},
    "local_twice": {"record", "record again"},
    "local_answer": {"record_answer"},
    "local_saga": {"reserve", "reserve_second"},
    "rows_saga": {"first", "second", "third"},
}


def count_rows(outcome: Outcome, about: str) -> Counter[str]:
    database: SimulatedDatabase = outcome.actors["database"]
    return Counter(effect.what for effect in database.list_effects(about))


def undone(rows: Counter[str]) -> set[str]:
    undos = [what for what in rows if what.startswith("undo ") and not what.endswith(NOTHING_TO_UNDO)]
    return {what.removeprefix("undo ") for what in undos}


def check_recovery_points(outcome: Outcome) -> Iterator[str]:
    """At the end: what the journal says is done is there, and with the store in the same database the other way round,
    too (I15)."""
    together = outcome.scenario.store == "database"
    for record in outcome.records.values():
        yield from compare_journal(outcome, record, together=together)


def compare_journal(outcome: Outcome, record: Record, *, together: bool) -> Iterator[str]:
    about = PURCHASE.findall(record.key)[0]
    entries = OperationJournal.decode(record.progress).entries
    if not entries or record.state is State.COMPLETED:
        return
    rows = count_rows(outcome, about)
    for step in STEPS:
        states = Counter(entry.state for entry in entries if entry.step == step)
        known = sum(states.values()) - states["failed"]
        there = sum(count for what, count in rows.items() if what == step or what.startswith(f"{step} "))
        if there < known or (together and there > known):
            yield f"I15 phase atomicity: {record.key} has {there} rows of {step!r}, and its journal says {dict(states)}"


def check_receipts(outcome: Outcome) -> Iterator[str]:
    """Where the store is elsewhere: each row has its receipt in the same commit, and each receipt its row (I15)."""
    database: SimulatedDatabase = outcome.actors["database"]
    runs = {record.run: record for record in outcome.records.values()}
    found: Counter[tuple[str, str]] = Counter()
    for run, step, result in database.connection.execute(f"SELECT run, step, result FROM {NAMES.receipts}"):
        if run in runs and step != "record" and result:
            name = step.partition(":")[2]
            found[PURCHASE.findall(runs[run].key)[0], name] += 1
    for purchase in outcome.purchases:
        rows = count_rows(outcome, purchase.name)
        for (about, name), count in found.items():
            step = f"undo {name.removesuffix(':undo')}" if name.endswith(":undo") else name
            there = sum(many for what, many in rows.items() if what == step or what.startswith(f"{step} "))
            if about == purchase.name and there != count:
                yield f"I15 receipts: {about} has {count} receipts of {name!r} and {there} rows"


TOGETHER = Scenario(
    deploy,
    KINDS,
    (open_database_with_store, ImpatientOperator),
    (check_rows, check_recovery_points, check_operator),
    store="database",
    decide=decide,
)
"""The store is in the user's database: recovery points commit with the rows."""
ELSEWHERE = Scenario(
    deploy,
    KINDS,
    (SimulatedDatabase, ImpatientOperator),
    (check_rows, check_recovery_points, check_receipts, check_operator),
    decide=decide,
)
"""The store is elsewhere: receipts commit with the rows."""
