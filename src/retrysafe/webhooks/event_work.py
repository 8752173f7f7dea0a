"""One event for one handler, as work for the guard or the transaction."""

from __future__ import annotations

from typing import Any

from retrysafe.core.records import Answer
from retrysafe.webhooks.event import Event
from retrysafe.webhooks.handlers import Handler

DONE_ANSWER = Answer(200)


class AnswerNotFinal(Exception):
    """The handler answered something else than 2xx: the sender is told, nothing is kept, and its retry runs."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"the handler answered {answer.status}")
        self.answer = answer


def answer_from_result(result: Any) -> Answer:
    """What a handler's result means. Only an Answer says something: the rest was not meant for the sender."""
    answer = result if isinstance(result, Answer) else DONE_ANSWER
    if not 200 <= answer.status < 300:
        raise AnswerNotFinal(answer)
    return answer


class EventWork:
    """`threaded`: the handler is a plain function and must not hold up the loop it is called on."""

    __slots__ = ("_event", "_handler", "_threaded")

    def __init__(self, handler: Handler, event: Event, *, threaded: bool = False) -> None:
        self._handler = handler
        self._event = event
        self._threaded = threaded

    def call(self, given: Any) -> Any:
        """The guard gives its record, a transaction its handle; only who asked for the handle gets it."""
        if self._handler.is_async:
            return self._await_handler(given)
        if self._threaded:
            import asyncio

            return asyncio.to_thread(self._call_handler, given)
        return self._call_handler(given)

    def answer(self, result: Any) -> Answer:
        assert isinstance(result, Answer), "made by `finished`"
        return result

    def failure(self, error: Exception) -> Answer:
        raise AssertionError("a failure is never final here: the sender's retry must run") from error

    def _call_handler(self, given: Any) -> Answer:
        return answer_from_result(self._handler.call(self._event, given))

    async def _await_handler(self, given: Any) -> Answer:
        return answer_from_result(await self._handler.call(self._event, given))
