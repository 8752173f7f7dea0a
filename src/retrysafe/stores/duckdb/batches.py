"""A batch of claims: all records that are there are read by one statement, and who needs no write has its reply.

A statement is prepared anew each time, and that is most of what it costs. Replays and refusals come by the dozen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from retrysafe.core.moves import Grant, decide_grant
from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.stores.base import Plan
from retrysafe.stores.sql import rows
from retrysafe.stores.sql.dialect import Statement

MIN_CLAIMS = 2


def plan_read_claims(text: str, ops: Sequence[Op[Any]]) -> Plan[Statement, list[ClaimReply | None]]:
    """A reply for each claim that only has to be read; None for all others. Asked before
    anything is begun, and once more inside the transaction, in turn: what is read then stays as it is."""
    replies: list[ClaimReply | None] = [None] * len(ops)
    claims = {op.id: (place, op) for place, op in enumerate(ops) if isinstance(op, Claim)}
    if len(claims) < MIN_CLAIMS:
        return replies
    for row in (yield Statement(text, {"ids": list(claims)}, writes=False)):
        record = rows.read_record(row)
        place, op = claims[record.id]
        moment = time.time_ns() // 1000 if op.now is None else op.now
        grant = decide_grant(record, op, moment)
        if grant is None or grant is Grant.OWN:
            replies[place] = ClaimReply(grant is Grant.OWN, record, moment)
    return replies
