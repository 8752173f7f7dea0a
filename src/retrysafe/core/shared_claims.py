"""Claims of one key that wait together are one question: one of them is sent, and its reply answers the others, too.

A hot key is asked for by many callers at once. The store would answer each of them with the same record. So one claim,
the leader, is sent; each of the others, its followers, judges the reply by its own fingerprint, as if the store had
executed its claim just after the leader's. Where that would not be certain, the follower asks in its own name.
"""

from __future__ import annotations

from retrysafe.core.ops import Claim, ClaimReply
from retrysafe.core.states import State


def can_follow(claim: Claim, leader: Claim) -> bool:
    """Whether a claim may wait for the reply to another claim of the same key. A claim that resumes a run may not: what
    it asks is another question. Neither may a claim at another moment (tests)."""
    return claim.now == leader.now and not claim.resumes and not leader.resumes and claim.token != leader.token


def share_reply(claim: Claim, reply: ClaimReply) -> ClaimReply | None:
    """The reply to a follower, made from the leader's reply; None if the follower has to ask for itself.

    Only a record that would refuse every claim is shared: completed and not expired, claimed under a living lease, or
    uncertain. A released, lapsed or expired record may be granted to the follower though it was refused to the leader,
    whose fingerprint may be another one. And a claim whose own token is on the record was sent before.
    """
    record = reply.record
    if record is None or claim.token == record.token or claim.token in record.ended:
        return None
    if record.state is State.RELEASED or record.lapsed(reply.now) or record.expired(reply.now):
        return None
    return ClaimReply(False, record, reply.now)
