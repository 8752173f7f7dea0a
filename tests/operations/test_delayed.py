"""Every message is held back in turn and comes in after its resend, or after what followed (I32).

For each call of a story and each number of calls it is late by: everybody is told what happened, every effect happens
at most once, and a key for which nothing ran is never uncertain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retrysafe import Answer, Policy
from retrysafe.core.states import State
from retrysafe.engine import resending
from retrysafe.errors import OutcomeUnknown, RetrySafeError
from retrysafe.testing import AsyncFaultStore, Fault, FaultStore, Script
from retrysafe.worker.completer import Completer
from tests.operations.world import World

LATER = range(5)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resending, "RESEND_DELAYS_SECONDS", (0.0, 0.0, 0.0, 0.0))


class Story:
    """Something to run, and what it did."""

    right: Any

    def __init__(self, w: World) -> None:
        self.w = w
        self.sent: list[str] = []

    def run(self) -> Any:
        raise NotImplementedError

    def check(self) -> None:
        assert len(self.sent) <= 1


class Guarded(Story):
    """A guarded function."""

    right = "sent a"
    abandoned: Any = "uncertain"

    def __init__(self, w: World) -> None:
        super().__init__(w)

        def send(item: str) -> str:
            self.sent.append(item)
            return f"sent {item}"

        policy = Policy(abandoned=self.abandoned, failures="release")
        self._send = w.safe.once("send:{item}", scope="late", policy=policy)(w.in_mode(send))

    def run(self) -> Any:
        return self.w.run(self._send("a"))


class Rerun(Guarded):
    """One that may run again."""

    abandoned = "rerun"


class Steps(Story):
    """An operation with local steps around two foreign ones, of which one may not be repeated."""

    def __init__(self, w: World) -> None:
        super().__init__(w)
        op = self.op = w.safe.operation("late")
        self.right = Answer(201, {"did": ["reserve", "email", "charge"]})

        @w.local(op)
        def reserve(tx: Any) -> str:
            yield from w.insert(tx, "reserve")
            return "reserve"

        @w.foreign(op)
        def email(*, key: str) -> str:
            self.sent.append(f"email {key}")
            return "email"

        @w.foreign(op, repeatable=False)
        def charge(*, key: str) -> str:
            self.sent.append("charge")
            return "charge"

        @w.local(op)
        def finish(tx: Any, did: list[str]) -> Answer:
            yield from w.insert(tx, "finish")
            return Answer(201, {"did": did})

        @w.body(op)
        def body() -> Answer:
            did = []
            for step in (reserve, email, charge):
                did.append((yield step))
            return (yield lambda: finish(did))

    def run(self) -> Any:
        return self.w.run(self.op(key="k"))

    def check(self) -> None:
        assert self.sent.count("charge") <= 1
        assert len(set(self.sent) - {"charge"}) <= 1, "an email is sent with one key, which its provider knows"
        assert len(self.w.items()) == len(set(self.w.items())), "a local step was committed twice"


STORIES = [Guarded, Rerun, Steps]


def told(story: Story) -> Any:
    """The answer, or an error that says that there is none."""
    try:
        return story.run()
    except RetrySafeError as error:
        return error


def played(w: World, kind: type[Story], *faults: Fault) -> tuple[Story, Script, Callable[[], None]]:
    script = Script(faults)
    w.safe._sync = sync = FaultStore(w.safe.store, script)
    w.safe._async = loop = AsyncFaultStore(w.safe.async_store, script)

    def arrive() -> None:
        if w.loop is None:
            sync.arrive()
        else:
            w.loop.run(loop.arrive())

    return kind(w), script, arrive


@pytest.mark.parametrize("kind", STORIES)
def test_each_message_held_back(new: Callable[[], World], kind: type[Story]) -> None:
    counted, script, _ = played(new(), kind)
    assert counted.run() == counted.right
    calls = script.calls
    assert calls >= 2
    for number in range(1, calls + 1):
        for later in LATER:
            story, script, arrive = played(new(), kind, Fault(number, "delayed", later=later))
            assert told(story) == story.right, f"message {number}, {later} later: {script.seen}"
            assert script.calls > number, "the message was sent again"
            arrive()
            settles(story, f"message {number} of {calls}, {later} later")


@pytest.mark.parametrize("kind", STORIES)
def test_each_message_held_back_and_its_resend_refused(new: Callable[[], World], kind: type[Story]) -> None:
    """First silence, then a store that is not there: the outcome is still found."""
    counted, script, _ = played(new(), kind)
    counted.run()
    for number in range(1, script.calls + 1):
        for later in (0, 2):
            faults = (Fault(number, "delayed", later=later), Fault(number + 1, "before"), Fault(number + 2, "before"))
            story, _, arrive = played(new(), kind, *faults)
            assert told(story) == story.right
            arrive()
            settles(story, f"message {number}, {later} later, its resend refused")


def settles(story: Story, shown: str) -> None:
    """Whatever was held back has arrived, and time has passed: the worker and a client come to the same end."""
    w = story.w
    story.check()
    assert w.state() is State.COMPLETED, shown
    w.lapse()
    if isinstance(story, Steps):
        Completer(w.safe, grace=0).run_once()
    assert told(story) == story.right, shown
    story.check()


@pytest.mark.parametrize("kind", STORIES)
def test_nobody_is_there_any_more_when_it_comes(new: Callable[[], World], kind: type[Story]) -> None:
    """The caller dies with its message on the way. A message that arrives late does not hold up the next caller."""
    counted, script, _ = played(new(), kind)
    counted.run()
    for number in range(1, script.calls + 1):
        story, _, arrive = played(new(), kind, Fault(number, "delayed", crash=True))
        with pytest.raises(BaseException, match="delayed"):
            story.run()
        ran = bool(story.sent or story.w.items())
        arrive()
        story.w.lapse()
        end = told(story)
        story.check()
        if isinstance(end, OutcomeUnknown):
            assert ran or kind is Guarded, f"message {number}: nothing ran, and yet it is {end}"
        else:
            assert end == story.right
