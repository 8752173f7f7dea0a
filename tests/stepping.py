"""A store that is closed, or whose event loop ends, at every turn of the loop, one after the other.

`asyncio.sleep(0)` in a loop spins while the other side is still thinking: how many turns a connection takes is then a
matter of luck. Here nobody spins, so each turn has something to do, and there are as many as there are steps.
"""

from __future__ import annotations

import asyncio
import types
from asyncio import selector_events
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from retrysafe.stores.base import AsyncStore
from retrysafe.testing.builders import claim
from tests.opening import unique

How = Literal["closed", "left"]
HOWS: tuple[How, ...] = ("closed", "left")
"""By aclose; or the loop ends and nobody closes."""
MOST = 400
"""Turns: more than any driver needs to connect, log in and ask."""


class SteppingLoop(asyncio.SelectorEventLoop):
    """Calls `then` once, between the turn `last` and the next."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.turns = 0
        self.last = last
        self.then: Callable[[], Any] | None = None

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]  # typeshed does not know it
        self.turns += 1
        if self.turns >= self.last and self.then is not None:
            then, self.then = self.then, None
            then()


@types.coroutine
def _go_on(work: Coroutine[Any, Any, Any], awaited: Any) -> Generator[Any, Any, Any]:
    try:
        while True:
            try:
                sent = yield awaited
            except BaseException as error:
                awaited = work.throw(error)
            else:
                awaited = work.send(sent)
    except StopIteration as end:
        return end.value


def begin(work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
    """Take the first step at once and not in the turn after. The rest is to be awaited."""

    async def rest(awaited: Any) -> Any:
        return await _go_on(work, awaited)

    async def nothing() -> None:
        return None

    try:
        return rest(work.send(None))
    except StopIteration:
        return nothing()


@contextmanager
def open_transports() -> Iterator[list[Any]]:
    """Those of sockets that were made in here and are not closed at its end. Nothing is left to the collector."""
    made: list[Any] = []
    still_open: list[Any] = []
    kind: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    make = kind.__init__

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        made.append(self)

    kind.__init__ = noted
    try:
        yield still_open
    finally:
        kind.__init__ = make
        still_open.extend(each for each in made if each._sock is not None)
        for each in still_open:  # told by this test; not once more, as a warning, in whichever comes next
            each._sock.close()
            each._sock = None


def ended_after(turns: int, opening: Callable[[], AsyncStore], how: How) -> bool:
    """Open, ask, and end after so many turns of a loop of its own. False if the reply had come by then."""
    loop = SteppingLoop(turns)
    ending: list[asyncio.Task[Any]] = []

    async def work() -> None:
        store = opening()
        asked = asyncio.ensure_future(store.execute(claim(unique(), now=None)))

        def then() -> None:
            if not asked.done():
                ending.append(loop.create_task(begin(store.aclose())))

        loop.then = loop.stop if how == "left" else then
        async with asyncio.timeout(60):
            with suppress(Exception):
                await asked
            loop.then = None
            await (ending[0] if ending else store.aclose())
        for _ in range(3):  # a transport that was told to close does so in the next turn
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            runner.run(work())
        except RuntimeError as error:
            if "stopped before" not in str(error):
                raise
            return True
    return bool(ending)


def leaking_turns(opening: Callable[[], AsyncStore], how: How) -> list[int]:
    """After which turns an end left a connection open."""
    found = []
    for turns in range(1, MOST):
        with open_transports() as still_open:
            early = ended_after(turns, opening, how)
        if still_open:
            found.append(turns)
        if not early:
            assert turns > 5, f"the reply came within {turns} turns: nothing was ended while it connected"
            return found
    raise AssertionError(f"no reply within {MOST} turns")
