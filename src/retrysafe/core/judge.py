"""Decides which of the five outcomes (outcomes.py) a claim's reply means. Pure.

Flows that wait or claim inside a transaction build some outcomes themselves (transactions/flow.py, web/claim_flows.py).
"""

from __future__ import annotations

from urllib.parse import unquote

from retrysafe.core.ops import Claim, ClaimReply
from retrysafe.core.outcomes import Busy, Execute, Mismatch, Outcome, Replay, Uncertain
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.errors import CorruptRecord

LAPSED_UNSEEN = (
    "the lease lapsed, and its owner has not said how it ended: the owner stopped, or it finished and could not reach "
    "the store to record it"
)


def judge(op: Claim, reply: ClaimReply) -> Outcome:
    """The outcome of a claim."""
    record = reply.record
    if record is None:
        return Busy(SECOND_MICROS)  # locked by a transaction that has not committed: its row cannot be seen yet
    if reply.granted:
        return Execute(record.fence, record, reply.now, reply.asked)
    # Before the state: another request must get neither the answer nor a hint to wait for it (I8, I9).
    if not op.accepts(record.fingerprint):
        check_readable(op, record)
        return Mismatch(record.created)
    if not op.wants(record.run):
        return Mismatch(record.created)
    if record.state is State.COMPLETED:
        return Replay(record)
    return judge_refused(record, reply.now)


def check_readable(op: Claim, record: Record) -> None:
    """Raise CorruptRecord if the fingerprint was made with a key that is not in the ring: it cannot be compared, so it
    is not a mismatch."""
    key = record.fingerprint.key
    if key and key not in {form.key for form in (op.fingerprint, *op.alternatives)}:
        raise CorruptRecord(
            record.id,
            f"its fingerprint was made with key {unquote(key)!r}, which is not in the key ring; add it as an old key",
        )


def judge_refused(record: Record, now: int) -> Outcome:
    """The outcome for a record that is open, or that another caller has just released: busy or uncertain."""
    if record.state is State.UNCERTAIN:
        return Uncertain(record.started, record.note)
    if record.lapsed(now) and record.on_lapse == "uncertain":
        return Uncertain(record.started, LAPSED_UNSEEN)
    return Busy(max(record.lease_until - now, 0))
