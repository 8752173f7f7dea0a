"""The retry flow of one call: a generator that yields effects (send, wait, write to disk, discard).

`drive` and `adrive` are the two loops that carry out the effects. Only they and the adapters are sync or async: an
adapter has a transport with `send` and `discard`. `decide.py` makes the decisions.
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
"""Authentication required. Digest authentication then sends the same request a second time."""


class RequestInfo(NamedTuple):
    """The parts of a request that keys and retries depend on."""

    method: str
    host: str
    path: str
    query: str
    content_type: str
    body: bytes | None
    """None if it is a stream, which can be read only once."""
    given: str | None = None
    """The key that the caller set."""
    scheme: str = "https"
    port: int | None = None

    @property
    def destination(self) -> Destination:
        return Destination(self.scheme, self.host, self.port, self.path)


class AttemptLog(NamedTuple):
    """The key of a call, how often it was sent, and why it ended. For logs and for people."""

    key: str | None
    sends: int
    why: str


class CallResult(NamedTuple):
    """The last attempt of a call, and its log."""

    attempt: AttemptResult
    log: AttemptLog


@dataclass(frozen=True, slots=True)
class ClientState:
    """What all calls of one client share."""

    retries: Retries
    budget: Budget
    journal: Journal | None
    ambient: Clock
    owned: bool = False
    """This client opened the journal, so it closes it."""

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
    opened = Journal(journal) if isinstance(journal, str | Path) else journal
    return ClientState(
        retries or Retries(), budget or Budget(), opened, ambient or SYSTEM_CLOCK, owned=opened is not journal
    )


# Effects ----------------------------------------------------------------------------------------


class SendRequest(NamedTuple):
    """Send the request with this key. The reply is an AttemptResult."""

    key: str | None


class Backoff(NamedTuple):
    """Wait before the next attempt."""

    seconds: float


class RunBlocking(NamedTuple):
    """Call a function that waits for the disk. The reply is its result."""

    function: Callable[[], Any]


class DiscardResponse(NamedTuple):
    """Close an answer that the caller does not get, and return its connection to the pool."""

    attempt: AnsweredAttempt


Effect = SendRequest | Backoff | RunBlocking | DiscardResponse
CallFlow = Generator[Effect, Any, CallResult]


# The flow ---------------------------------------------------------------------------------------


class ClientCall:
    """One logical call: its identity, its key and its counters."""

    def __init__(self, request: RequestInfo, state: ClientState, pending: UnansweredOperation | None = None) -> None:
        self.state = state
        self.request = request
        method = request.method
        self.keyed = state.retries.is_keyed(method)
        # An unsafe method without a key is not protected: a retry is safe only if nothing was sent.
        self.repeatable = request.body is not None and (self.keyed or method in SAFE_METHODS)
        self.started = state.ambient.clock()
        self.sends = self.busy = self.rotations = 0
        self.settled = False
        self.identity: Identity | None = None
        self._unanswered = self._begin_or_continue(pending) if self.keyed else None
        self.key: str | None = rotate_key(self.identity.key, self.rotations) if self.identity else None
        self._digest = b""
        if state.journal is not None and self.keyed and request.body is not None:
            parts = (method, request.path, request.query, request.content_type, [request.body])
            self._digest = fingerprint.fingerprint_http(*parts).digest

    def _begin_or_continue(self, pending: UnansweredOperation | None) -> UnansweredOperation:
        """Continue the unanswered operation of this request, or begin a new one. Returns it as it was first sent."""
        request = self.request
        found = continue_operation(pending, request.method, request.destination, request.given)
        if pending is None or found is None:
            pending = begin_operation(request.method, request.destination, request.given, self.state.ambient.token)
            found = pending.identity, 0
        self.identity, self.rotations = found
        return pending

    def get_unanswered(self) -> UnansweredOperation | None:
        """What to remember of this operation. None once it is answered."""
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
            elapsed=ambient.clock() - self.started,
            now=ambient.wall(),
            jitter=ambient.draw(),
            keyed=self.keyed,
            repeatable=self.repeatable,
            rotations=self.rotations,
            own_key=self.identity is not None and self.identity.own,
        )

    def record_send(self) -> Generator[Effect, Any, None]:
        """Write to the journal that the call is about to be sent. The journal says with which key."""
        self.sends += 1
        journal, identity = self.state.journal, self.identity
        if journal is not None and identity is not None:
            plan = PlannedCall(identity.id, identity.operation, identity.call, identity.key, self._digest)
            entry = yield RunBlocking(
                partial(journal.record_send, plan, self.state.now_micros(), self.state.retries.key_life)
            )
            self.key, self.rotations = entry.key, entry.rotations

    def rotate(self) -> Generator[Effect, Any, None]:
        """Use a new key from the next attempt on, and write it to the journal."""
        assert self.identity is not None
        self.rotations += 1
        self.key = rotate_key(self.identity.key, self.rotations)
        if self.state.journal is not None:
            write = partial(
                self.state.journal.record_rotation, self.identity.id, self.key, self.rotations, self.state.now_micros()
            )
            yield RunBlocking(write)

    def record_attempt(self, attempt: AttemptResult, verdict: AttemptVerdict) -> Generator[Effect, Any, None]:
        """Write the result of an attempt to the journal."""
        journal, identity = self.state.journal, self.identity
        if journal is None or identity is None:
            return
        if isinstance(attempt, FailedAttempt) and attempt.reach == "unsent":
            yield RunBlocking(partial(_write_tolerantly, journal.record_unsent, identity.id, self.state.now_micros()))
        elif isinstance(attempt, AnsweredAttempt) and isinstance(verdict, FinishVerdict) and verdict.settled:
            yield RunBlocking(
                partial(_write_tolerantly, journal.record_answer, identity.id, attempt.status, self.state.now_micros())
            )

    def charge_budget(self, verdict: AttemptVerdict) -> AttemptVerdict:
        """Take a token for a retry, or finish if none is left. Waiting for a request in progress is free: it adds no
        load."""
        if isinstance(verdict, FinishVerdict) or (isinstance(verdict, RetryVerdict) and verdict.busy):
            return verdict
        if self.state.budget.take(self.state.ambient.clock):
            return verdict
        return FinishVerdict(f"{verdict.why}; the retry budget is used up")


def call_flow(call: ClientCall) -> CallFlow:
    """Send the request until `decide` says that the call is finished."""
    request, state = call.request, call.state
    while True:
        yield from call.record_send()
        attempt: AttemptResult = yield SendRequest(call.key)
        verdict = call.charge_budget(decide(attempt, call.read_state(), state.retries))
        yield from call.record_attempt(attempt, verdict)
        if isinstance(verdict, FinishVerdict):
            if isinstance(attempt, AnsweredAttempt) and attempt.status < 500:
                state.budget.give()
            call.settled = isinstance(attempt, AnsweredAttempt) and verdict.settled and is_conclusive(attempt)
            return CallResult(attempt, AttemptLog(call.key, call.sends, verdict.why))
        logger.info("%s %s%s: %s; next attempt in %.2f s", *request[:3], verdict.why, verdict.after)
        if isinstance(attempt, AnsweredAttempt):
            yield DiscardResponse(attempt)
        if isinstance(verdict, RotateVerdict):
            yield from call.rotate()
        else:
            call.busy += verdict.busy
        yield Backoff(verdict.after)


def is_conclusive(attempt: AnsweredAttempt) -> bool:
    """True if an answer ends the operation. After a redirect or a challenge the same request is sent once more."""
    return attempt.status not in CHALLENGE_STATUSES and not (
        300 <= attempt.status < 400 and "location" in attempt.headers
    )


def _write_tolerantly(write: Callable[..., None], *values: Any) -> None:
    """Write to the journal, and only log a failure: the answer is here already, and the entry only saves work later."""
    try:
        write(*values)
    except RetrySafeError as error:
        logger.warning("the journal was not updated after an attempt: %s", error)


def annotate(error: Exception, request: RequestInfo, log: AttemptLog) -> None:
    """Add a note with the key to the error, for the reader of the traceback."""
    key = f" with idempotency key {log.key!r}" if log.key else ""
    advice = ". To try again, use the same key: with a new key it could be executed twice" if log.key else ""
    error.add_note(
        f"retrysafe: {request.method} {request.host}{request.path} was sent {log.sends} time(s){key}. {log.why}{advice}"
    )


# The two loops ----------------------------------------------------------------------------------


class AttemptTransport(Protocol):
    """Sends one attempt of a request."""

    def send(self, key: str | None) -> AttemptResult: ...

    def discard(self, attempt: AnsweredAttempt) -> None: ...


class AsyncAttemptTransport(Protocol):
    """Sends one attempt of a request on the event loop, which is the adapter's: asyncio or trio."""

    async def send(self, key: str | None) -> AttemptResult: ...

    async def discard(self, attempt: AnsweredAttempt) -> None: ...

    async def sleep(self, seconds: float) -> None: ...

    async def run_blocking(self, function: Callable[[], Any]) -> Any: ...


def resume(flow: CallFlow, reply: Any) -> Effect | CallResult:
    """Resume the flow with the reply to its last effect. Returns the next effect, or the result."""
    try:
        return flow.send(reply)
    except StopIteration as stop:
        result: CallResult = stop.value
        return result


def drive(flow: CallFlow, transport: AttemptTransport, sleep: Callable[[float], None]) -> CallResult:
    """Run a call flow to its end."""
    handlers: dict[type[Any], Callable[[Any], Any]] = {
        SendRequest: lambda effect: transport.send(effect.key),
        Backoff: lambda effect: sleep(effect.seconds),
        RunBlocking: lambda effect: effect.function(),
        DiscardResponse: lambda effect: transport.discard(effect.attempt),
    }
    effect = resume(flow, None)
    while not isinstance(effect, CallResult):
        effect = resume(flow, handlers[type(effect)](effect))
    return effect


async def adrive(flow: CallFlow, transport: AsyncAttemptTransport) -> CallResult:
    """Run a call flow to its end on the event loop."""
    handlers: dict[type[Any], Callable[[Any], Awaitable[Any]]] = {
        SendRequest: lambda effect: transport.send(effect.key),
        Backoff: lambda effect: transport.sleep(effect.seconds),
        RunBlocking: lambda effect: transport.run_blocking(effect.function),
        DiscardResponse: lambda effect: transport.discard(effect.attempt),
    }
    effect = resume(flow, None)
    while not isinstance(effect, CallResult):
        effect = resume(flow, await handlers[type(effect)](effect))
    return effect
