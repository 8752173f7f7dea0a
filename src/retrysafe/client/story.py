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
from retrysafe.client.decide import Again, Answered, Failed, Finish, Rotate, Seen, Standing, Verdict, decide
from retrysafe.client.journal import Journal, Plan
from retrysafe.client.operation import Identity, rotated
from retrysafe.client.pending import Pending, Place, begin, continued
from retrysafe.client.settings import REAL, Ambient, Retries
from retrysafe.core import fingerprint
from retrysafe.core.times import SECOND
from retrysafe.errors import RetrySafeError

logger = logging.getLogger("retrysafe.client")

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
CHALLENGES = frozenset({401, 407})
"""Say who you are, and ask again: digest authentication sends the same request a second time."""


class Request(NamedTuple):
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
    def place(self) -> Place:
        return Place(self.scheme, self.host, self.port, self.path)


class Trail(NamedTuple):
    """What happened to a call, for logs and for people."""

    key: str | None
    sends: int
    why: str


class Ending(NamedTuple):
    seen: Seen
    trail: Trail


@dataclass(frozen=True, slots=True)
class Kit:
    """What the calls of one client share."""

    retries: Retries
    budget: Budget
    journal: Journal | None
    ambient: Ambient
    owned: bool = False
    """The journal was opened here, so it is closed here."""

    def close(self) -> None:
        if self.owned and self.journal is not None:
            self.journal.close()

    def micros(self) -> int:
        return int(self.ambient.wall() * SECOND)


def kit(
    retries: Retries | None = None,
    journal: Journal | str | Path | None = None,
    budget: Budget | None = None,
    ambient: Ambient | None = None,
) -> Kit:
    book = Journal(journal) if isinstance(journal, str | Path) else journal
    return Kit(retries or Retries(), budget or Budget(), book, ambient or REAL, owned=book is not journal)


# What is to be done -----------------------------------------------------------------------------


class Send(NamedTuple):
    key: str | None


class Wait(NamedTuple):
    seconds: float


class Keep(NamedTuple):
    """Work on the disk."""

    do: Callable[[], Any]


class Discard(NamedTuple):
    """An answer that nobody will read: give its connection back."""

    seen: Answered


Effect = Send | Wait | Keep | Discard
Story = Generator[Effect, Any, Ending]


# The story --------------------------------------------------------------------------------------


class Call:
    """One logical call: who it is, and where it stands."""

    def __init__(self, request: Request, kit: Kit, pending: Pending | None = None) -> None:
        self.kit = kit
        self.request = request
        method = request.method
        self.keyed = kit.retries.keyed(method)
        # An unsafe method without a key has no protection at all: it may be sent again only if it surely was not sent.
        self.repeatable = request.body is not None and (self.keyed or method in SAFE)
        self.began = kit.ambient.clock()
        self.sends = self.busy = self.rotations = 0
        self.settled = False
        self.identity: Identity | None = None
        self._pending = self._began(pending) if self.keyed else None
        self.key: str | None = rotated(self.identity.key, self.rotations) if self.identity else None
        self._digest = b""
        if kit.journal is not None and self.keyed and request.body is not None:
            asked = (method, request.path, request.query, request.content_type, [request.body])
            self._digest = fingerprint.of_request(*asked).digest

    def _began(self, pending: Pending | None) -> Pending:
        """The operation that this call is or goes on with, as it began."""
        asked = self.request
        found = continued(pending, asked.method, asked.place, asked.given)
        if pending is None or found is None:
            pending = begin(asked.method, asked.place, asked.given, self.kit.ambient.token)
            found = pending.identity, 0
        self.identity, self.rotations = found
        return pending

    def pending(self) -> Pending | None:
        """What is to be remembered of it: nothing once it is answered."""
        if self._pending is None or self.settled:
            return None
        if self._pending.place == self.request.place:
            return self._pending._replace(rotations=self.rotations)
        return self._pending

    def standing(self) -> Standing:
        ambient = self.kit.ambient
        return Standing(
            sends=self.sends,
            busy=self.busy,
            elapsed=ambient.clock() - self.began,
            now=ambient.wall(),
            draw=ambient.draw(),
            keyed=self.keyed,
            repeatable=self.repeatable,
            rotations=self.rotations,
            own_key=self.identity is not None and self.identity.own,
        )

    def sending(self) -> Generator[Effect, Any, None]:
        """Write down that it is about to be sent, and with which key."""
        self.sends += 1
        journal, who = self.kit.journal, self.identity
        if journal is not None and who is not None:
            plan = Plan(who.id, who.operation, who.call, who.key, self._digest)
            entry = yield Keep(partial(journal.send, plan, self.kit.micros(), self.kit.retries.key_life))
            self.key, self.rotations = entry.key, entry.rotations

    def rotate(self) -> Generator[Effect, Any, None]:
        assert self.identity is not None
        self.rotations += 1
        self.key = rotated(self.identity.key, self.rotations)
        if self.kit.journal is not None:
            move = partial(self.kit.journal.rotate, self.identity.id, self.key, self.rotations, self.kit.micros())
            yield Keep(move)

    def noted(self, seen: Seen, verdict: Verdict) -> Generator[Effect, Any, None]:
        """What the journal learns from an attempt."""
        journal, who = self.kit.journal, self.identity
        if journal is None or who is None:
            return
        if isinstance(seen, Failed) and seen.reach == "unsent":
            yield Keep(partial(_harmless, journal.unsent, who.id, self.kit.micros()))
        elif isinstance(seen, Answered) and isinstance(verdict, Finish) and verdict.settled:
            yield Keep(partial(_harmless, journal.answered, who.id, seen.status, self.kit.micros()))

    def affordable(self, verdict: Verdict) -> Verdict:
        """Within the retry budget. Waiting for work that is in progress is no load, and free."""
        if isinstance(verdict, Finish) or (isinstance(verdict, Again) and verdict.busy):
            return verdict
        if self.kit.budget.take(self.kit.ambient.clock):
            return verdict
        return Finish(f"{verdict.why}; the retry budget is used up")


def tell(call: Call) -> Story:
    request, kit = call.request, call.kit
    while True:
        yield from call.sending()
        seen: Seen = yield Send(call.key)
        verdict = call.affordable(decide(seen, call.standing(), kit.retries))
        yield from call.noted(seen, verdict)
        if isinstance(verdict, Finish):
            if isinstance(seen, Answered) and seen.status < 500:
                kit.budget.give()
            call.settled = isinstance(seen, Answered) and verdict.settled and concludes(seen)
            return Ending(seen, Trail(call.key, call.sends, verdict.why))
        logger.info("%s %s%s: %s; again in %.2f s", *request[:3], verdict.why, verdict.after)
        if isinstance(seen, Answered):
            yield Discard(seen)
        if isinstance(verdict, Rotate):
            yield from call.rotate()
        else:
            call.busy += verdict.busy
        yield Wait(verdict.after)


def concludes(seen: Answered) -> bool:
    """Whether an answer ends the operation. A redirect and a challenge ask for the same request once more."""
    return seen.status not in CHALLENGES and not (300 <= seen.status < 400 and "location" in seen.headers)


def _harmless(write: Callable[..., None], *values: Any) -> None:
    """A note that only spares work later: the answer that is already here is not given up for it."""
    try:
        write(*values)
    except RetrySafeError as error:
        logger.warning("the journal was not updated after an attempt: %s", error)


def annotate(error: Exception, request: Request, trail: Trail) -> None:
    """Tell whoever reads the traceback which key was used."""
    key = f" with idempotency key {trail.key!r}" if trail.key else ""
    advice = ". To try again, use the same key: a new one could do it twice" if trail.key else ""
    error.add_note(
        f"retrysafe: {request.method} {request.host}{request.path} was tried {trail.sends} time(s){key}. "
        f"{trail.why}{advice}"
    )


# The two loops ----------------------------------------------------------------------------------


class Hands(Protocol):
    def send(self, key: str | None) -> Seen: ...

    def discard(self, seen: Answered) -> None: ...


class AsyncHands(Protocol):
    async def send(self, key: str | None) -> Seen: ...

    async def discard(self, seen: Answered) -> None: ...

    async def wait(self, seconds: float) -> None: ...

    async def keep(self, do: Callable[[], Any]) -> Any: ...


def resumed(story: Story, reply: Any) -> Effect | Ending:
    """What the story asks for next, or how it ended."""
    try:
        return story.send(reply)
    except StopIteration as stop:
        ending: Ending = stop.value
        return ending


def drive(story: Story, hands: Hands, sleep: Callable[[float], None]) -> Ending:
    does: dict[type[Any], Callable[[Any], Any]] = {
        Send: lambda effect: hands.send(effect.key),
        Wait: lambda effect: sleep(effect.seconds),
        Keep: lambda effect: effect.do(),
        Discard: lambda effect: hands.discard(effect.seen),
    }
    effect = resumed(story, None)
    while not isinstance(effect, Ending):
        effect = resumed(story, does[type(effect)](effect))
    return effect


async def adrive(story: Story, hands: AsyncHands) -> Ending:
    does: dict[type[Any], Callable[[Any], Awaitable[Any]]] = {
        Send: lambda effect: hands.send(effect.key),
        Wait: lambda effect: hands.wait(effect.seconds),
        Keep: lambda effect: hands.keep(effect.do),
        Discard: lambda effect: hands.discard(effect.seen),
    }
    effect = resumed(story, None)
    while not isinstance(effect, Ending):
        effect = resumed(story, await does[type(effect)](effect))
    return effect
