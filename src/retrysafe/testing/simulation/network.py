"""The network between hosts: every message may be lost, doubled, held back, or late, as the seed says.

What becomes of the n-th message depends on the seed and on n alone. So one fault can be taken out of a failing run
without changing the others: that is how a story is made shorter (`shrink.py`).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import CoroutineType
from typing import Any, NamedTuple

from retrysafe.testing.simulation.chance import choose, draw_four
from retrysafe.testing.simulation.history import History, SentMessage
from retrysafe.testing.simulation.hosts import HOST, TRUE_TIME, Host
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
    reordered: float = 0.0
    """The request is overtaken by a few that follow it."""


FAULTS = tuple(each.name for each in fields(FaultRates))
NO_FAULTS = FaultRates()


def draw_rates(seed: int) -> FaultRates:
    """Each seed has some kinds of faults and not others: a rare combination is met more often so."""
    return FaultRates(**{name: choose(seed, name, (0.0, 0.0, 0.01, 0.05, 0.2)) for name in FAULTS})


class Fate(NamedTuple):
    """What becomes of one message. Times are seconds of true time."""

    fault: str
    request_seconds: float
    reply_seconds: float
    copy_seconds: float | None = None
    """When a second copy arrives; None: there is none."""


class Unanswered(Exception):
    """No reply came within the time that the sender waits."""


class ConnectionRefused(Exception):
    """The receiver could not be reached: nothing was sent."""


MAX_HELD_SECONDS = 400.0
SLOW_SECONDS = 20.0
REORDERED_SECONDS = 2.0
USUAL_SECONDS = 0.01
"""No message that meets no fault takes longer."""

_UNANSWERED = object()
_make_tuple = tuple.__new__


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
        self._rates = [(name, getattr(rates, name)) for name in FAULTS if getattr(rates, name)]
        self._any_fault = sum(rate for _, rate in self._rates) + 1e-9
        """No message that draws more than this meets a fault."""
        self.partitions: list[frozenset[str]] = []
        self._landings: list[tuple[float, int, Host]] = []
        """When and where messages arrive that take longer than usual."""
        self.healed = False
        """Set when faults stop: what is sent from then on arrives."""

    def part(self, one: str, other: str, seconds: float) -> None:
        """Nothing passes between two hosts, in either direction, for some seconds."""
        pair = frozenset((one, other))
        self.partitions.append(pair)
        self._loop.call_at_true_time(self._loop.now + seconds, self._rejoin, pair)

    def _rejoin(self, pair: frozenset[str]) -> None:
        if pair in self.partitions:
            self.partitions.remove(pair)

    def heal(self) -> None:
        """Faults stop: what is sent from now on arrives."""
        self.healed = True
        self.partitions.clear()

    def find_next_landing(self) -> float | None:
        """When the next message arrives that is under way for longer than usual; None: there is none."""
        landings = self._landings
        while landings and (landings[0][0] <= self._loop.now or not landings[0][2].alive):
            heapq.heappop(landings)
        return landings[0][0] if landings else None

    def decide_fate(self) -> Fate:
        """What becomes of the next message."""
        self.sent += 1
        there, back, drawn, delay = draw_four(self._seed, self.sent)
        request, reply = 0.0005 + 0.002 * there, 0.0005 + 0.002 * back
        if drawn > self._any_fault or self.healed or self.sent in self._suppressed:
            return _make_tuple(Fate, ("", request, reply, None))  # as Fate(...), without a call of its own
        for name, rate in self._rates:
            if drawn < rate:
                self.met[self.sent] = name
                return _apply_fault(name, request, reply, delay)
            drawn -= rate
        return Fate("", request, reply)

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
        loop, sender, fate = self._loop, HOST.get(TRUE_TIME), self.decide_fate()
        if fate.fault:
            if once and fate.fault == "doubled":
                fate = fate._replace(fault="", copy_seconds=None)
            else:
                self._history.note(loop.now, sender.name, fate.fault, about, message=what, to=receiver.name)
        message: SentMessage | None = None
        if self._history.detailed:
            message = SentMessage(loop.now, sender.name, receiver.name, what, about, fate.fault)
            self._history.messages.append(message)
        if fate.fault == "refused":
            raise ConnectionRefused(f"{receiver.name} cannot be reached")
        answer: asyncio.Future[Any] = asyncio.Future(loop=loop)
        exchange = _Exchange(self, sender, receiver, function, fate, answer, message)
        if not fate.fault:
            loop.call_at_true_time(loop.now + fate.request_seconds, exchange.arrive, host=receiver)
        elif fate.fault != "request_lost":
            self._schedule_arrival(exchange, fate.request_seconds)
        if fate.copy_seconds is not None:
            self._schedule_arrival(exchange, fate.copy_seconds)
        timer = loop.call_later(seconds, _set_once, answer, _UNANSWERED)
        try:
            result = await answer
        finally:
            timer.cancel()
        if result is _UNANSWERED:
            raise Unanswered(f"{receiver.name} did not answer within {seconds:g} s")
        value, error = result
        if error is None:
            return value
        try:
            raise error
        finally:
            del result, error  # an error that knows this frame, in this frame, is left to the collector of cycles

    def _schedule_arrival(self, exchange: _Exchange, delay: float) -> None:
        when = self._loop.now + delay
        self._loop.call_at_true_time(when, exchange.arrive, host=exchange.receiver)
        if delay > USUAL_SECONDS:
            heapq.heappush(self._landings, (when, self.sent, exchange.receiver))

    def is_cut(self, one: Host, other: Host) -> bool:
        return frozenset((one.name, other.name)) in self.partitions

    def schedule_reply(self, exchange: _Exchange, result: Any, error: BaseException | None) -> None:
        when = self._loop.now + exchange.fate.reply_seconds
        self._loop.call_at_true_time(when, _set_once, exchange.answer, (result, error), host=exchange.sender)

    @property
    def now(self) -> float:
        return self._loop.now

    def start_task(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self._loop.create_task(work)
        return task


class _Exchange:
    """One request and its reply."""

    __slots__ = ("_function", "_message", "_network", "answer", "fate", "receiver", "sender")

    def __init__(
        self,
        network: Network,
        sender: Host,
        receiver: Host,
        function: Callable[[], Any],
        fate: Fate,
        answer: asyncio.Future[Any],
        message: SentMessage | None,
    ) -> None:
        self.sender, self.receiver, self.fate, self.answer = sender, receiver, fate, answer
        self._network, self._function, self._message = network, function, message

    def arrive(self) -> None:
        """At the receiver, in its context. A receiver that is dead by now never runs this."""
        network = self._network
        if network.partitions and network.is_cut(self.sender, self.receiver):
            return
        if self._message is not None:
            self._note_arrival(self._message)
        try:
            result = self._function()
        except Exception as error:
            self._reply(None, error)
            return
        if type(result) is not CoroutineType:
            self._reply(result, None)
            return
        network.start_task(result).add_done_callback(self._reply_of_task)

    def _note_arrival(self, message: SentMessage) -> None:
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
        network = self._network
        if self.fate.fault == "reply_lost" or (network.partitions and network.is_cut(self.sender, self.receiver)):
            return
        network.schedule_reply(self, result, error)


def _set_once(answer: asyncio.Future[Any], result: Any) -> None:
    """At the sender, in its context: the first of reply and timeout."""
    if not answer.done():
        answer.set_result(result)


def _apply_fault(fault: str, request: float, reply: float, delay: float) -> Fate:
    """The fate of a message that would usually take these seconds."""
    if fault == "held_back":
        return Fate(fault, MAX_HELD_SECONDS * delay * delay, reply)
    if fault == "doubled":
        return Fate(fault, request, reply, MAX_HELD_SECONDS * delay * delay)
    if fault == "slow":
        return Fate(fault, SLOW_SECONDS * delay, SLOW_SECONDS * delay)
    if fault == "reordered":
        return Fate(fault, REORDERED_SECONDS * delay, reply)
    return Fate(fault, request, reply)
