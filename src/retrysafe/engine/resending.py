"""Decides when an operation is sent again, and after which delay, for the sync and the async performer.

After an unclear failure the same operation is sent again. It recognises its own earlier success, so the next reply also
tells what became of the first sending. Until there is such a reply, neither "the store cannot be reached" nor "the key
is locked by a transaction that cannot be seen" counts as an answer: the first sending may have been carried out, or may
still be.

An owner's own writes (Persist) are sent again also after a failure that did nothing: the outcome must not be lost
because the store was away for a moment.
"""

from __future__ import annotations

from typing import Any

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.core.times import SECOND_MICROS
from retrysafe.errors import StoreError, StoreUnavailable, StoreUnclear

RESEND_DELAYS_SECONDS = (0.02, 0.1, 0.5, 1.0)
"""Delay before each further sending; the last value is used for all that follow."""

RESEND_LIMIT_SECONDS = 30.0
"""How long an operation is sent again at most, however much of its lease is left."""


CANCEL_TIMEOUT_SECONDS = 10.0
"""How long a cancelled caller waits to find out what its last operation did."""


class ResendState:
    """The sendings of one operation so far. `until` is the end of its lease, on the process's clock."""

    __slots__ = ("_deadline", "_insists", "_sent", "_sure", "unclear")

    def __init__(self, op: Op[Any], began: float, until: float | None = None) -> None:
        self._insists = until is not None
        self._sent = 0
        self._sure = len(RESEND_DELAYS_SECONDS)
        self.unclear = False
        """A sending was not answered: it may have been carried out, or may still be."""
        if until is not None:
            self._deadline = min(until, began + RESEND_LIMIT_SECONDS)
        elif isinstance(op, Claim):
            self._deadline = began + min(op.lease / SECOND_MICROS, RESEND_LIMIT_SECONDS)
            if op.lease > 0:
                self._sure = 1  # if the store does not answer, a caller must not wait for five timeouts
        else:
            self._deadline = began

    def delay_after_error(self, error: StoreError, now: float) -> float:
        """Seconds to wait before the next sending. Raises the caller's error if there is no further sending."""
        if isinstance(error, StoreUnclear):
            self.unclear = True
        elif not isinstance(error, StoreUnavailable) or not (self.unclear or self._insists):
            raise error
        pause = self._next_delay(now)
        if pause is None:
            raise error if isinstance(error, StoreUnclear) or not self.unclear else earlier_send_unclear_error(error)
        return pause

    def delay_after_reply(self, reply: Any, now: float) -> float | None:
        """Seconds to wait before the next sending if this reply is not conclusive; None if it is. After an unclear
        sending, the invisible transaction that locks the key may be that sending itself, not committed yet."""
        if not self.unclear or not isinstance(reply, ClaimReply) or reply.record is not None:
            return None
        pause = self._next_delay(now)
        if pause is None:
            raise earlier_send_unclear_error(StoreUnavailable("the key is held by a transaction that has not ended"))
        return pause

    def _next_delay(self, now: float) -> float | None:
        """The first few sendings are always made: the end of a lease does not make an unclear outcome clear. Of a claim
        only the first one is: a claim that is given up is released in the background (orphaned_claims.py)."""
        self._sent += 1
        pause = RESEND_DELAYS_SECONDS[min(self._sent, len(RESEND_DELAYS_SECONDS)) - 1]
        return pause if self._sent <= self._sure or now + pause < self._deadline else None


def earlier_send_unclear_error(error: StoreError) -> StoreUnclear:
    """The error of an operation whose last sending failed for sure, after an earlier one that may have been carried
    out."""
    reason = str(error).replace("nothing was done", "that sending did nothing")
    unclear = StoreUnclear(f"an earlier sending may have been carried out; the last one met this: {reason}")
    unclear.__cause__ = error
    return unclear
