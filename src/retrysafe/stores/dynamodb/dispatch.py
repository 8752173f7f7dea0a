"""The table of operations and their plans, and the result of a batch."""

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


def plan_operation(op: Op[Any], ref: TableRef) -> Plan[Any]:
    build_plan = PLANS.get(type(op))
    if build_plan is None:
        raise UsageError(
            f"the DynamoDB store does not know {type(op).__name__}: it has no outbox; "
            "stage jobs in your own table, in the same transaction"
        )
    return build_plan(op, ref)


def partition_singles(ops: Sequence[Op[Any]]) -> tuple[list[int], list[int]]:
    """Split a batch into indexes of operations that run one after the other and of those that may run in parallel.

    Only an operation on a single key runs in parallel. The others use the store's threads themselves.
    """
    sequential = [index for index, op in enumerate(ops) if type(op) not in SINGLE_KEY_PLANS]
    return sequential, [index for index in range(len(ops)) if index not in set(sequential)]


def combine_results(results: list[Any]) -> list[Any]:
    """Return all replies, or raise one error for the batch. If a part of the batch was carried out, the error is
    StoreUnclear, because an error that says "nothing was done" would be wrong."""
    errors = [each for each in results if isinstance(each, Exception)]
    if not errors:
        return results
    unclear = [each for each in errors if isinstance(each, StoreUnclear)]
    if unclear:
        raise unclear[0]
    first = errors[0]
    if isinstance(first, StoreOutage) and len(errors) < len(results):
        raise StoreUnclear(f"a part of the batch was not carried out: {first}") from first
    raise first
