"""How a simulated application answers: retrysafe's errors as the statuses that our adapters give them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from retrysafe.errors import AnswerGone, InProgress, NotNow, OutcomeUnknown, RetrySafeError, StoredFailure
from retrysafe.testing.simulation.application import ClientReply

__all__ = ["ClientReply", "reply_safely"]


async def reply_safely(call: Awaitable[Any]) -> ClientReply:
    """Await an operation's answer. 409 and 503: the client sends the same key again."""
    try:
        answer = await call
    except (InProgress, NotNow):
        return ClientReply(409, b"")
    except OutcomeUnknown:
        return ClientReply(500, b"unknown")
    except StoredFailure:
        return ClientReply(500, b"failed")
    except AnswerGone:
        return ClientReply(410, b"")
    except (RetrySafeError, TimeoutError, ConnectionError) as error:
        return ClientReply(503, f"{type(error).__name__}: {error}"[:300].encode())
    # A stored 409 or 5xx is an answer, too: no client of these histories sends again after 410.
    return ClientReply(410 if answer.status == 409 or answer.status >= 500 else answer.status, answer.body)
