"""Renewals that do not wait for the rows of other calls (I33).

A row is waited for in whole seconds here. A renewal that waited would hold the queue, the thread and the connection of
other renewals for too long. So locked rows are left out (renew_unlocked_many.sql), and their renewals are sent once
more after a short pause: most locks last for a moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retrysafe.core.ops import Op, Renew
from retrysafe.stores.base import LockNotAvailable, Plan
from retrysafe.stores.mysql.batches import BATCHES, Packet, Quoted, build_clock, build_statement
from retrysafe.stores.sql.batches import HELD

LEASE_PARTS = 200
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.005, 0.1


def are_renewals(ops: Sequence[Op[Any]]) -> bool:
    return all(type(op) is Renew for op in ops)


def compute_pause(ops: Sequence[Renew]) -> float:
    """Seconds until renewals that met a lock are sent again: a small part of the shortest lease, as on PostgreSQL."""
    shortest = min(op.lease for op in ops) / 1_000_000
    return min(MAX_PAUSE_SECONDS, max(MIN_PAUSE_SECONDS, shortest / LEASE_PARTS))


def plan_renewals(texts: Mapping[str, str], ops: Sequence[Renew], quoted: Quoted) -> Plan[Packet, list[Any]]:
    """The replies: True, False if the lease was lost, or HELD if the row is locked."""
    batch = BATCHES[Renew]
    ordered = sorted(ops, key=lambda op: op.id)
    clock = build_clock(texts, ops[0].now)
    try:
        renew = build_statement(texts, batch._replace(text="renew_unlocked_many"), ordered, quoted)
        _, changed = yield [clock, renew]
    except LockNotAvailable:
        return [HELD] * len(ops)  # of a lock that is not on the row itself: in an index, or on the table
    if len(changed) == len(ops):
        return [True] * len(ops)
    [found] = yield [build_statement(texts, batch._replace(text="renewed_many"), ordered, quoted)]
    replies = {bytes(record_id): True if renewed else HELD for record_id, renewed in found}
    return [replies.get(op.id, False) for op in ops]


def take_held(ops: Sequence[Renew], replies: Sequence[Any]) -> list[Renew]:
    return [op for op, reply in zip(ops, replies, strict=True) if reply is HELD]


def replace_held(replies: Sequence[Any], again: Sequence[Any]) -> list[Any]:
    """The replies, with those of the second sending in the places of HELD."""
    left = iter(again)
    return [next(left) if reply is HELD else reply for reply in replies]
