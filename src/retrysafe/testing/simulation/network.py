"""The network between hosts: every message may be lost, doubled, held back, or late, as the seed says.

What becomes of the n-th message depends on the seed and on n alone. So one fault can be taken out of a failing run
without changing the others: that is how a story is made shorter (`shrink.py`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from random import Random
from typing import Any, NamedTuple

from retrysafe.testing.simulation.history import History, Message
from retrysafe.testing.simulation.hosts import HOST, Host
from retrysafe.testing.simulation.loop import SimulatedLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How often each fault is met, as a share of messages. A seed draws its own rates (`draw_rates`)."""

    request_lost: float = 0.0
    reply_lost: float = 0.0
    doubled: float = 0.0
    held_back: float = 0.0
    """The request arrives long after everything that follows it."""
    refused: float = 0.0
    slow: float = 0.0


NO_FAULTS = FaultRates()


def draw_rates(chance: Random) -> FaultRates:
    """Each seed has some kinds of faults and not others: a rare combination is met more often so."""
    return FaultRates(**{each.name: chance.choice((0.0, 0.0, 0.01, 0.05, 0.2)) for each in fields(FaultRates)})


class Fate(NamedTuple):
    """What becomes of one message. Times are seconds of true time."""

    fault: str
    request_seconds: float
    reply_seconds: float
    copy_seconds: float | None = None
    """When a second copy arrives; None: there is none."""


class Unanswered(Exception):
    """No reply came within the time that the sender waits."""


class Refused(Exception):
    """The receiver could not be reached: nothing was sent."""


MAX_HELD_SECONDS = 400.0
SLOW_SECONDS = 20.0


class Network:
    """Carries messages. `suppressed`: numbers of messages that go well whatever the seed says."""

    def __init__(
        self,
        loop: SimulatedLoop,
        history: History,
        seed: int,
        rates: FaultRates,
        suppressed: frozenset[int] = frozenset(),
    ) -> None:
        self.rates = rates
        self.sent = 0
        self.met: dict[int, str] = {}
        """The faults so far, by the number of their message."""
        self._loop = loop
        self._history = history
        self._seed = seed
        self._suppressed = suppressed
        self._partitions: set[frozenset[str]] = set()
        self.healed = False
        """Set when faults stop: what is sent from then on arrives."""

    def part(self, one: Host, other: Host) -> None:
        self._partitions.add(frozenset((one.name, other.name)))

    def heal(self) -> None:
        self._partitions.clear()

    def decide_fate(self) -> Fate:
        """What becomes of the next message."""
        self.sent += 1
        chance = Random(self._seed * 1_000_003 + self.sent)
        usual = Fate("", 0.0005 + 0.002 * chance.random(), 0.0005 + 0.002 * chance.random())
        drawn, delay = chance.random(), chance.random()
        if self.healed or self.sent in self._suppressed:
            return usual
        for each in fields(FaultRates):
            rate: float = getattr(self.rates, each.name)
            if drawn < rate:
                self.met[self.sent] = each.name
                return _apply_fault(usual, each.name, delay)
            drawn -= rate
        return usual

    async def call(
        self,
        receiver: Host,
        function: Callable[[], Any],
        *,
        seconds: float,
        what: str,
        about: str = "",
        once: bool = False,
    ) -> Any:
        """Have a function called at the receiver; its result, or the error it raised. Raises Unanswered or Refused.
        `once`: this message is never doubled, as a TCP connection never does; it may still be lost or late."""
        sender, fate = HOST.get(), self.decide_fate()
        if once and fate.fault == "doubled":
            fate = fate._replace(fault="", copy_seconds=None)
        if fate.fault:
            self._history.note(self._loop.now, sender.name, fate.fault, about, message=what, to=receiver.name)
        message: Message | None = None
        if self._history.detailed:
            message = Message(self._loop.now, sender.name, receiver.name, what, about, fate.fault)
            self._history.messages.append(message)
        if fate.fault == "refused":
            raise Refused(f"{receiver.name} cannot be reached")
        answer: asyncio.Future[Any] = self._loop.create_future()
        exchange = _Exchange(self, sender, receiver, function, fate, answer, message)
        if fate.fault != "request_lost":
            self._loop.call_at_true_time(self._loop.now + fate.request_seconds, exchange.arrive, host=receiver)
        if fate.copy_seconds is not None:
            self._loop.call_at_true_time(self._loop.now + fate.copy_seconds, exchange.arrive, host=receiver)
        try:
            async with asyncio.timeout(seconds):
                result, error = await answer
        except TimeoutError:
            raise Unanswered(f"{receiver.name} did not answer within {seconds:g} s") from None
        if error is not None:
            raise error
        return result

    def is_cut(self, one: Host, other: Host) -> bool:
        return frozenset((one.name, other.name)) in self._partitions

    def schedule_reply(self, exchange: _Exchange, result: Any, error: BaseException | None) -> None:
        when = self._loop.now + exchange.fate.reply_seconds
        self._loop.call_at_true_time(when, exchange.settle, result, error, host=exchange.sender)

    @property
    def now(self) -> float:
        return self._loop.now

    def start_task(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._loop.create_task(work)
        return task


class _Exchange:
    """One request and its reply."""

    def __init__(
        self,
        network: Network,
        sender: Host,
        receiver: Host,
        function: Callable[[], Any],
        fate: Fate,
        answer: asyncio.Future[Any],
        message: Message | None,
    ) -> None:
        self.sender, self.receiver, self.fate = sender, receiver, fate
        self._message = message
        self._network, self._function, self._answer = network, function, answer

    def arrive(self) -> None:
        """At the receiver, in its context. A receiver that is dead by now never runs this."""
        if self._network.is_cut(self.sender, self.receiver):
            return
        if self._message is not None:
            self._note_arrival(self._message)
        try:
            result = self._function()
        except Exception as error:
            self._reply(None, error)
            return
        if not inspect.iscoroutine(result):
            self._reply(result, None)
            return
        self._network.start_task(result).add_done_callback(self._reply_of_task)

    def _note_arrival(self, message: Message) -> None:
        if message.arrived is None:
            message.arrived = self._network.now
        else:
            message.copied = self._network.now

    def _reply_of_task(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return  # the receiver stopped: nobody answers
        error = task.exception()
        self._reply(None if error else task.result(), error)

    def _reply(self, result: Any, error: BaseException | None) -> None:
        if self.fate.fault != "reply_lost" and not self._network.is_cut(self.sender, self.receiver):
            self._network.schedule_reply(self, result, error)

    def settle(self, result: Any, error: BaseException | None) -> None:
        """At the sender, in its context."""
        if not self._answer.done():
            if self._message is not None:
                self._message.answered = self._network.now
            self._answer.set_result((result, error))


def _apply_fault(usual: Fate, fault: str, delay: float) -> Fate:
    if fault == "held_back":
        return usual._replace(fault=fault, request_seconds=MAX_HELD_SECONDS * delay * delay)
    if fault == "doubled":
        return usual._replace(fault=fault, copy_seconds=MAX_HELD_SECONDS * delay * delay)
    if fault == "slow":
        return usual._replace(fault=fault, request_seconds=SLOW_SECONDS * delay, reply_seconds=SLOW_SECONDS * delay)
    return usual._replace(fault=fault)
