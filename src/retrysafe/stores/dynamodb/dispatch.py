"""Which plan an operation has, and what a batch of them comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrysafe.core.ops import Op
from retrysafe.errors import StoreOutage, StoreUnclear, UsageError
from retrysafe.stores.dynamodb.listing import WHOLE_TABLE_PLANS
from retrysafe.stores.dynamodb.plans import SINGLE_KEY_PLANS, Plan, TableRef
from retrysafe.stores.dynamodb.transact import TransactOp, transact

PLANS: dict[type[Op[Any]], Callable[[Any, TableRef], Plan[Any]]] = {
    **SINGLE_KEY_PLANS,
    **WHOLE_TABLE_PLANS,
    TransactOp: transact,
}


def plan_operation(op: Op[Any], place: TableRef) -> Plan[Any]:
    found = PLANS.get(type(op))
    if found is None:
        raise UsageError(
            f"the DynamoDB store does not know {type(op).__name__}: it has no outbox; "
            "stage jobs in your own table, in the same transaction"
        )
    return found(op, place)


def partition_singles(ops: Sequence[Op[Any]]) -> tuple[list[int], list[int]]:
    """The places of those that use the store's threads themselves, and of those that may go out beside each other."""
    alone = [place for place, op in enumerate(ops) if type(op) not in SINGLE_KEY_PLANS]
    return alone, [place for place in range(len(ops)) if place not in set(alone)]


def combine_results(found: list[Any]) -> list[Any]:
    """All replies, or the error that says most: as long as one was carried out, it was not "nothing was done"."""
    errors = [each for each in found if isinstance(each, Exception)]
    if not errors:
        return found
    unclear = [each for each in errors if isinstance(each, StoreUnclear)]
    if unclear:
        raise unclear[0]
    first = errors[0]
    if isinstance(first, StoreOutage) and len(errors) < len(found):
        raise StoreUnclear(f"a part of the batch was not carried out: {first}") from first
    raise first
