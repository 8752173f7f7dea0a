"""The story of one call, from its key to its last answer: a generator that yields what is to be done.

`drive` and `adrive` are the two loops that do it, and the only place that knows sync from async; the adapters bring
the hands (send, discard), `decide.py` the decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from retrysafe.client.budget import Budget
from retrysafe.client.decide import (
    AnsweredAttempt,
    AttemptResult,
    AttemptState,
    AttemptVerdict,
    FailedAttempt,
    FinishVerdict,
    RetryVerdict,
    RotateVerdict,
    decide,
)
from retrysafe.client.journal import Journal, PlannedCall
from retrysafe.client.operation import Identity, rotate_key
from retrysafe.client.settings import SYSTEM_CLOCK, Clock, Retries
from retrysafe.client.unanswered import Destination, UnansweredOperation, begin_operation, continue_operation
from retrysafe.core import fingerprint
from retrysafe.core.times import SECOND_MICROS
from retrysafe.errors import RetrySafeError

logger = logging.getLogger("retrysafe.client")

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
CHALLENGE_STATUSES = frozenset({401, 407})
"""Say who you are, and ask again: digest authentication sends the same request a second time."""


class RequestInfo(NamedTuple):
    """A request, as far as keys and retries are concerned."""

    method: str
    host: str
    path: str
    query: str
    content_type: str
    body: bytes | None
    """None: a stream that can be read once."""
    given: str | None = None
    """The key that the caller has set."""
    scheme: str = "https"
    port: int | None = None

    @property
    def destination(self) -> Destination:
        return Destination(self.scheme, self.host, self.port, self.path)


class AttemptLog(NamedTuple):
    """What happened to a call, for logs and for people."""

    key: str | None
    sends: int
    why: str


class CallResult(NamedTuple):
    seen: AttemptResult
    trail: AttemptLog


@dataclass(frozen=True, slots=True)
class ClientState:
    """What the calls of one client share."""

    retries: Retries
    budget: Budget
    journal: Journal | None
    ambient: Clock
    owned: bool = False
    """The journal was opened here, so it is closed here."""

    def close(self) -> None:
        if self.owned and self.journal is not None:
            self.journal.close()

    def now_micros(self) -> int:
        return int(self.ambient.wall() * SECOND_MICROS)


def build_client_state(
    retries: Retries | None = None,
    journal: Journal | str | Path | None = None,
    budget: Budget | None = None,
    ambient: Clock | None = None,
) -> ClientState:
    book = Journal(journal) if isinstance(journal, str | Path) else journal
    return ClientState(
        retries or Retries(), budget or Budget(), book, ambient or SYSTEM_CLOCK, owned=book is not journal
    )


# What is to be done -----------------------------------------------------------------------------


class SendRequest(NamedTuple):
    key: str | None


class Backoff(NamedTuple):
    seconds: float


class RunBlocking(NamedTuple):
    """Work on the disk."""

    do: Callable[[], Any]


class DiscardResponse(NamedTuple):
    """An answer that nobody will read: give its connection back."""

    seen: AnsweredAttempt


Effect = SendRequest | Backoff | RunBlocking | DiscardResponse
CallFlow = Generator[Effect, Any, CallResult]


# The story --------------------------------------------------------------------------------------


class ClientCall:
    """One logical call: who it is, and where it stands."""

    def __init__(self, request: RequestInfo, kit: ClientState, pending: UnansweredOperation | None = None) -> None:
        self.state = kit
        self.request = request
        method = request.method
        self.keyed = kit.retries.is_keyed(method)
        # An unsafe method without a key has no protection at all: it may be sent again only if it surely was not sent.
        self.repeatable = request.body is not None and (self.keyed or method in SAFE_METHODS)
        self.began = kit.ambient.clock()
        self.sends = self.busy = self.rotations = 0
        self.settled = False
        self.identity: Identity | None = None
        self._unanswered = self._begin_or_continue(pending) if self.keyed else None
        self.key: str | None = rotate_key(self.identity.key, self.rotations) if self.identity else None
        self._digest = b""
        if kit.journal is not None and self.keyed and request.body is not None:
            asked = (method, request.path, request.query, request.content_type, [request.body])
            self._digest = fingerprint.fingerprint_http(*asked).digest

    def _begin_or_continue(self, pending: UnansweredOperation | None) -> UnansweredOperation:
        """The operation that this call is or goes on with, as it began."""
        asked = self.request
        found = continue_operation(pending, asked.method, asked.destination, asked.given)
        if pending is None or found is None:
            pending = begin_operation(asked.method, asked.destination, asked.given, self.state.ambient.token)
            found = pending.identity, 0
        self.identity, self.rotations = found
        return pending

    def get_unanswered(self) -> UnansweredOperation | None:
        """What is to be remembered of it: nothing once it is answered."""
        if self._unanswered is None or self.settled:
            return None
        if self._unanswered.destination == self.request.destination:
            return self._unanswered._replace(rotations=self.rotations)
        return self._unanswered

    def read_state(self) -> AttemptState:
        ambient = self.state.ambient
        return AttemptState(
            sends=self.sends,
            busy=self.busy,
            elapsed=ambient.clock() - self.began,
            now=ambient.wall(),
            jitter=ambient.draw(),
            keyed=self.keyed,
            repeatable=self.repeatable,
            rotations=self.rotations,
            own_key=self.identity is not None and self.identity.own,
        )

    def record_send(self) -> Generator[Effect, Any, None]:
        """Write down that it is about to be sent, and with which key."""
        self.sends += 1
        journal, who = self.state.journal, self.identity
        if journal is not None and who is not None:
            plan = PlannedCall(who.id, who.operation, who.call, who.key, self._digest)
            entry = yield RunBlocking(
                partial(journal.record_send, plan, self.state.now_micros(), self.state.retries.key_life)
            )
            self.key, self.rotations = entry.key, entry.rotations

    def rotate(self) -> Generator[Effect, Any, None]:
        assert self.identity is not None
        self.rotations += 1
        self.key = rotate_key(self.identity.key, self.rotations)
        if self.state.journal is not None:
            move = partial(
                self.state.journal.record_rotation, self.identity.id, self.key, self.rotations, self.state.now_micros()
            )
            yield RunBlocking(move)

    def record_attempt(self, seen: AttemptResult, verdict: AttemptVerdict) -> Generator[Effect, Any, None]:
        """What the journal learns from an attempt."""
        journal, who = self.state.journal, self.identity
        if journal is None or who is None:
            return
        if isinstance(seen, FailedAttempt) and seen.reach == "unsent":
            yield RunBlocking(partial(_write_tolerantly, journal.record_unsent, who.id, self.state.now_micros()))
        elif isinstance(seen, AnsweredAttempt) and isinstance(verdict, FinishVerdict) and verdict.settled:
            yield RunBlocking(
                partial(_write_tolerantly, journal.record_answer, who.id, seen.status, self.state.now_micros())
            )

    def charge_budget(self, verdict: AttemptVerdict) -> AttemptVerdict:
        """Within the retry budget. Waiting for work that is in progress is no load, and free."""
        if isinstance(verdict, FinishVerdict) or (isinstance(verdict, RetryVerdict) and verdict.busy):
            return verdict
        if self.state.budget.take(self.state.ambient.clock):
            return verdict
        return FinishVerdict(f"{verdict.why}; the retry budget is used up")


def call_flow(call: ClientCall) -> CallFlow:
    request, kit = call.request, call.state
    while True:
        yield from call.record_send()
        seen: AttemptResult = yield SendRequest(call.key)
        verdict = call.charge_budget(decide(seen, call.read_state(), kit.retries))
        yield from call.record_attempt(seen, verdict)
        if isinstance(verdict, FinishVerdict):
            if isinstance(seen, AnsweredAttempt) and seen.status < 500:
                kit.budget.give()
            call.settled = isinstance(seen, AnsweredAttempt) and verdict.settled and is_conclusive(seen)
            return CallResult(seen, AttemptLog(call.key, call.sends, verdict.why))
        logger.info("%s %s%s: %s; again in %.2f s", *request[:3], verdict.why, verdict.after)
        if isinstance(seen, AnsweredAttempt):
            yield DiscardResponse(seen)
        if isinstance(verdict, RotateVerdict):
            yield from call.rotate()
        else:
            call.busy += verdict.busy
        yield Backoff(verdict.after)


def is_conclusive(seen: AnsweredAttempt) -> bool:
    """Whether an answer ends the operation. A redirect and a challenge ask for the same request once more."""
    return seen.status not in CHALLENGE_STATUSES and not (300 <= seen.status < 400 and "location" in seen.headers)


def _write_tolerantly(write: Callable[..., None], *values: Any) -> None:
    """A note that only spares work later: the answer that is already here is not given up for it."""
    try:
        write(*values)
    except RetrySafeError as error:
        logger.warning("the journal was not updated after an attempt: %s", error)


def annotate(error: Exception, request: RequestInfo, trail: AttemptLog) -> None:
    """Tell whoever reads the traceback which key was used."""
    key = f" with idempotency key {trail.key!r}" if trail.key else ""
    advice = ". To try again, use the same key: a new one could do it twice" if trail.key else ""
    error.add_note(
        f"retrysafe: {request.method} {request.host}{request.path} was tried {trail.sends} time(s){key}. "
        f"{trail.why}{advice}"
    )


# The two loops ----------------------------------------------------------------------------------


class AttemptTransport(Protocol):
    def send(self, key: str | None) -> AttemptResult: ...

    def discard(self, seen: AnsweredAttempt) -> None: ...


class AsyncAttemptTransport(Protocol):
    async def send(self, key: str | None) -> AttemptResult: ...

    async def discard(self, seen: AnsweredAttempt) -> None: ...

    async def sleep(self, seconds: float) -> None: ...

    async def run_blocking(self, do: Callable[[], Any]) -> Any: ...


def resume(story: CallFlow, reply: Any) -> Effect | CallResult:
    """What the story asks for next, or how it ended."""
    try:
        return story.send(reply)
    except StopIteration as stop:
        ending: CallResult = stop.value
        return ending


def drive(story: CallFlow, hands: AttemptTransport, sleep: Callable[[float], None]) -> CallResult:
    does: dict[type[Any], Callable[[Any], Any]] = {
        SendRequest: lambda effect: hands.send(effect.key),
        Backoff: lambda effect: sleep(effect.seconds),
        RunBlocking: lambda effect: effect.do(),
        DiscardResponse: lambda effect: hands.discard(effect.seen),
    }
    effect = resume(story, None)
    while not isinstance(effect, CallResult):
        effect = resume(story, does[type(effect)](effect))
    return effect


async def adrive(story: CallFlow, hands: AsyncAttemptTransport) -> CallResult:
    does: dict[type[Any], Callable[[Any], Awaitable[Any]]] = {
        SendRequest: lambda effect: hands.send(effect.key),
        Backoff: lambda effect: hands.sleep(effect.seconds),
        RunBlocking: lambda effect: hands.run_blocking(effect.do),
        DiscardResponse: lambda effect: hands.discard(effect.seen),
    }
    effect = resume(story, None)
    while not isinstance(effect, CallResult):
        effect = resume(story, await does[type(effect)](effect))
    return effect
