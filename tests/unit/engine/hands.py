"""A third loop, driven by hand: the test sees each effect a flow asks for and says what comes of it."""

from __future__ import annotations

from typing import Any, TypeVar

from retrysafe.core import moves
from retrysafe.core.keys import Key
from retrysafe.core.ops import Claim, ClaimReply
from retrysafe.core.records import Answer, Record
from retrysafe.engine.effects import Effect, Flow, Invoke, Persist
from retrysafe.engine.events import Events
from retrysafe.engine.guard import Ended, Task, guard
from retrysafe.policy import Policy
from retrysafe.testing import builders

R = TypeVar("R")
NOW = 1_000_000_000


class Hands:
    """`effect` is what the flow asks for now; `result` or `error` how it ended. What it insists on (Persist) is shown
    as the operation itself, and kept in `insisted`."""

    def __init__(self, flow: Flow[Any]) -> None:
        self._flow = flow
        self.asked: list[Effect] = []
        self.insisted: list[Persist] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self.over = False
        self._advance(lambda: next(flow))

    @property
    def effect(self) -> Any:
        assert not self.over, f"the flow is over: {self.result!r} {self.error!r}"
        return self.asked[-1]

    def reply(self, value: Any) -> Hands:
        return self._advance(lambda: self._flow.send(value))

    def fail(self, error: BaseException) -> Hands:
        return self._advance(lambda: self._flow.throw(error))

    def close(self) -> None:
        self._flow.close()

    def kinds(self) -> list[str]:
        return [type(effect).__name__ for effect in self.asked]

    def _advance(self, step: Any) -> Hands:
        try:
            effect = step()
            if isinstance(effect, Persist):
                self.insisted.append(effect)
                effect = effect.op
            self.asked.append(effect)
        except StopIteration as done:
            self.result, self.over = done.value, True
        except BaseException as error:
            self.error, self.over = error, True
        return self


class Work:
    """What the guard protects, in a test: what it answers is set, what happens to it is noted."""

    def __init__(self, answer: Any = None) -> None:
        self._answer = answer
        self.seen: list[Record] = []

    def call(self, record: Record) -> Any:
        self.seen.append(record)
        return "called"

    def answer(self, result: Any) -> Answer:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return Answer(200, str(result).encode())

    def failure(self, error: Exception) -> Answer:
        return Answer(500, type(error).__name__.encode())


def task(policy: Policy | None = None, body: bytes = b"same", **changes: Any) -> Task:
    made = policy or Policy(**changes)
    return Task(Key("k", "tenant"), "default", "POST /things", builders.fingerprint(body), made)


def guarded(given: Task | None = None, work: Work | None = None, events: Events | None = None) -> Hands:
    return Hands(guard(given or task(), work or Work(), events or Events()))


def granted(claim: Claim, found: Record | None = None) -> ClaimReply:
    """What a store answers to this claim when it holds `found`."""
    return moves.claim(found, claim, NOW)[1]


def started(hands: Hands) -> Hands:
    """Grant the claim, and say that the call has begun."""
    hands.reply(granted(hands.effect))
    assert isinstance(hands.effect, Invoke)
    hands.effect.started = True
    return hands


__all__ = ["NOW", "Ended", "Hands", "Work", "granted", "guarded", "started", "task"]
