"""When an operation is sent again: a decision, for both colours.

After an unclear failure the same operation is sent again: it recognises its own earlier success, so the next reply is
the truth about the first. From then on neither "the store cannot be reached" nor "somebody has it who cannot be seen"
is an answer: the first sending may have been carried out, or may still be.

An owner's own writes (Persist) are sent again also where nothing was done: what it knows must not be lost because the
store was away for a moment.
"""

from __future__ import annotations

from typing import Any

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.core.times import SECOND_MICROS
from retrysafe.errors import StoreError, StoreUnavailable, StoreUnclear

RESEND_DELAYS_SECONDS = (0.02, 0.1, 0.5, 1.0)
"""Seconds before each further sending; the last one for all that follow."""

RESEND_LIMIT_SECONDS = 30.0
"""Seconds for which an operation is sent again, whatever is left of its lease."""


CANCEL_TIMEOUT_SECONDS = 10.0
"""Seconds a cancelled caller is kept to find out what its last operation did."""


class ResendState:
    """What has become of one operation so far. `until` is where its lease ends, on the process's clock."""

    __slots__ = ("_deadline", "_insists", "_sent", "_sure", "_unclear")

    def __init__(self, op: Op[Any], began: float, until: float | None = None) -> None:
        self._insists = until is not None
        self._sent = 0
        self._sure = len(RESEND_DELAYS_SECONDS)
        self._unclear = False
        if until is not None:
            self._deadline = min(until, began + RESEND_LIMIT_SECONDS)
        elif isinstance(op, Claim):
            self._deadline = began + min(op.lease / SECOND_MICROS, RESEND_LIMIT_SECONDS)
            if op.lease > 0:
                self._sure = 1  # a silent store: whoever waits is not held for five timeouts of it
        else:
            self._deadline = began

    def delay_after_error(self, error: StoreError, now: float) -> float:
        """Seconds to wait before the next sending. Raises what to tell the caller where there is none."""
        if isinstance(error, StoreUnclear):
            self._unclear = True
        elif not isinstance(error, StoreUnavailable) or not (self._unclear or self._insists):
            raise error
        pause = self._next_delay(now)
        if pause is None:
            raise error if isinstance(error, StoreUnclear) or not self._unclear else earlier_send_unclear_error(error)
        return pause

    def delay_after_reply(self, reply: Any, now: float) -> float | None:
        """Seconds to wait where a reply is no answer: after an unclear sending, "held by somebody who cannot be seen"
        may be that sending itself, not committed yet. None: believe it."""
        if not self._unclear or not isinstance(reply, ClaimReply) or reply.record is not None:
            return None
        pause = self._next_delay(now)
        if pause is None:
            raise earlier_send_unclear_error(StoreUnavailable("the key is held by a transaction that has not ended"))
        return pause

    def _next_delay(self, now: float) -> float | None:
        """The first few are always tried: a lease that is over does not make an unclear answer clear. Of a claim only
        the first: what is given up then is given back by others (leftover.py)."""
        self._sent += 1
        pause = RESEND_DELAYS_SECONDS[min(self._sent, len(RESEND_DELAYS_SECONDS)) - 1]
        return pause if self._sent <= self._sure or now + pause < self._deadline else None


def earlier_send_unclear_error(error: StoreError) -> StoreUnclear:
    """An earlier sending may have been carried out, whatever the last one met."""
    said = str(error).replace("nothing was done", "that sending did nothing")
    made = StoreUnclear(f"an earlier sending may have been carried out; the last one met this: {said}")
    made.__cause__ = error
    return made
