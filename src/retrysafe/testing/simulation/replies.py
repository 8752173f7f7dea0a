"""How a simulated application answers: retrysafe's errors as the statuses that our adapters give them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from retrysafe.core.keys import Key
from retrysafe.core.records import Answer
from retrysafe.errors import AnswerGone, InProgress, NotNow, OutcomeUnknown, RetrySafeError, StoredFailure
from retrysafe.testing.simulation.application import ClientReply, Handler, Purchase
from retrysafe.testing.simulation.provider import DECLINED

__all__ = ["ClientReply", "answer_charge", "buy_with", "reply_safely", "reply_to_charge"]


def reply_to_charge(number: int) -> ClientReply:
    return ClientReply(402 if number == DECLINED else 201, b'{"charge": %d}' % number)


def answer_charge(number: int) -> Answer:
    return Answer(402 if number == DECLINED else 201, {"charge": number})


def buy_with(operation: Callable[..., Awaitable[Answer]]) -> Handler:
    """A handler that makes a purchase by a call of an operation. Its answer is stored when it is given."""

    async def buy(purchase: Purchase) -> ClientReply:
        answer = await operation(purchase.name, key=Key(purchase.key, "account"))
        return ClientReply(answer.status, answer.body, stored=True)

    return buy


async def reply_safely(call: Awaitable[Any]) -> ClientReply:
    """Await an operation's answer. 409 and 503: the client sends the same key again."""
    try:
        answer = await call
    except (InProgress, NotNow):
        return ClientReply(409, b"")
    except OutcomeUnknown:
        return ClientReply(500, b"unknown")
    except StoredFailure:
        return ClientReply(500, b"failed", stored=True)
    except AnswerGone:
        return ClientReply(410, b"")
    except (RetrySafeError, TimeoutError, ConnectionError) as error:
        return ClientReply(503, type(error).__name__.encode())
    if isinstance(answer, ClientReply):
        return answer
    # A stored 409 or 5xx is an answer, too: no client of these histories sends again after 410.
    return ClientReply(410 if answer.status == 409 or answer.status >= 500 else answer.status, answer.body)
