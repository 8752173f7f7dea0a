"""An event as a handler sees it, and as work for the guard or the transaction."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from retrysafe.core.records import Answer
from retrysafe.engine.handlers import HandlerWork

DONE_ANSWER = Answer(200)


@dataclass(frozen=True, slots=True)
class Event:
    """A verified delivery. The body is what the sender signed, byte for byte. Trust only those headers that the scheme
    signs."""

    provider: str
    id: str
    """The sender's id."""
    key: str
    """What identifies the event here. Derive keys for other systems from it: `derive(event.key, "crm", "contact")`."""
    type: str
    body: bytes = field(repr=False)
    timestamp: int | None = None
    """When this delivery was sent, in seconds; None if the scheme signs no time."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Names in lower case. Signatures, cookies and credentials are left out."""

    def json(self) -> Any:
        """The body, parsed as JSON."""
        return json.loads(self.body)

    def header(self, name: str) -> str:
        """The first header with this name; empty if there is none."""
        name = name.lower()
        return next((value for each, value in self.headers if each == name), "")


class AnswerNotFinal(Exception):
    """The handler answered with a status other than 2xx. The sender gets that answer, nothing is stored, and the
    sender's retry runs the handler again."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"the handler answered {answer.status}")
        self.answer = answer


def answer_from_result(result: Any) -> Answer:
    """The answer to the sender: the handler's result if it is an Answer, otherwise an empty 200."""
    answer = result if isinstance(result, Answer) else DONE_ANSWER
    if not 200 <= answer.status < 300:
        raise AnswerNotFinal(answer)
    return answer


class EventWork(HandlerWork):
    """One event for one handler."""

    __slots__ = ()

    def answer(self, result: Any) -> Answer:
        assert isinstance(result, Answer), "made by answer_from_result"
        return result

    def call_handler(self, given: Any) -> Answer:
        return answer_from_result(self.handler.call(self.message, given))

    async def acall_handler(self, given: Any) -> Answer:
        return answer_from_result(await self.handler.call(self.message, given))
