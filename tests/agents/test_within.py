"""`same_within`: equal calls within so many seconds are one call, wherever the windows begin; and async scopes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from retrysafe.core.ops import List, LookupReply
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.dedup_window import is_other_call, window_number
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.mcp import CONTEXT_PARAMETER, Tools
from retrysafe.policy import Policy
from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore
from tests.agents.test_tools import call

WITHIN = 10.0
START = 1_800_000_000.0
"""A moment at which a window of ten seconds begins."""


class Clocked(MemoryStore):
    """The memory store, with a clock of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START

    def _apply(self, op: Any) -> Any:
        return super()._apply(op if op.now is not None else replace(op, now=round(self.now * SECOND_MICROS)))


class NoMeta:
    """A request from a client that sends no key."""

    meta = None

    @property
    def request_context(self) -> NoMeta:
        return self


class Till:
    """A tool that counts its runs, plain or async, called at chosen moments."""

    def __init__(self, colour: str, **policy: Any) -> None:
        self.store = Clocked()
        self.safe = RetrySafe(self.store, async_store=AsyncMemoryStore(self.store))
        self.runs: list[float] = []
        self.trouble: Exception | None = None
        chosen = Policy.preset("function", **policy)
        tools = Tools(self.safe, scope="me", policy=chosen, clock=lambda: self.store.now)

        def tip(to: str) -> int:
            self.runs.append(self.store.now - START)
            if self.trouble is not None:
                raise self.trouble
            return len(self.runs)

        async def atip(to: str) -> int:
            return tip(to)

        self._tool: Callable[..., Any] = tools.once(same_within=WITHIN, name="tip")(tip if colour == "def" else atip)

    def at(self, seconds: float, to: str = "ann") -> Any:
        self.store.now = START + seconds
        given = self._tool(to=to, **{CONTEXT_PARAMETER: NoMeta()})
        return asyncio.run(given) if asyncio.iscoroutine(given) else given


@pytest.fixture(params=["def", "async def"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def till(colour: str) -> Till:
    return Till(colour)


@pytest.mark.parametrize("first", [0.0, 0.5, 5.0, 9.0, 9.75])
def test_within_the_seconds_it_is_one_call_and_after_them_another(till: Till, first: float) -> None:
    """The seconds count from the first call, not from the start of a window."""
    assert [till.at(first + later) for later in (0, 1, 5, 9.75)] == [1] * 4
    assert [till.at(first + later) for later in (10.0, 11, 19.75)] == [2] * 3
    assert till.at(first + 60) == 3
    assert till.at(first + 3000) == 4, "within the hour that answers are kept"
    assert till.runs == [first, first + 10.0, first + 60, first + 3000]


def test_a_second_apart_in_two_windows_is_one_call(till: Till) -> None:
    assert till.at(9.5) == till.at(10.5) == till.at(19.4) == 1
    assert till.at(19.6) == 2


def test_other_arguments_are_another_call(till: Till) -> None:
    assert [till.at(9.5, "ann"), till.at(10.5, "bob"), till.at(10.6, "ann"), till.at(10.7, "bob")] == [1, 2, 1, 2]


def test_a_call_that_failed_may_be_made_again(till: Till) -> None:
    till.trouble = ToolError("no change in the till")
    for moment in (1.0, 9.0, 10.5):
        with pytest.raises(ToolError):
            till.at(moment)
    till.trouble = None
    assert till.at(12.0) == till.at(21.9) == 4, "ten seconds from the one that was done"
    assert till.at(22.0) == 5


@pytest.mark.parametrize("moment", [9.5, 10.5])
def test_a_failure_may_be_the_result(colour: str, moment: float) -> None:
    till = Till(colour, failures="store")
    till.trouble = ValueError("no such person")
    with pytest.raises(ValueError, match="no such person"):
        till.at(9.0)
    with pytest.raises(ToolError, match="no such person"):
        till.at(moment)
    assert till.runs == [9.0]


class Killed(BaseException):
    """Ends the server in the middle of a call."""


@pytest.mark.parametrize(("died", "asked"), [(1.0, 5.0), (9.5, 10.5)])
def test_what_a_dead_server_leaves_is_told_once(colour: str, died: float, asked: float) -> None:
    till = Till(colour, lease=0.5, wait=0.0, busy="conflict")
    till.trouble = Killed()  # type: ignore[assignment]  # what no handler catches
    with pytest.raises(Killed):
        till.at(died)
    till.trouble = None
    with pytest.raises(ToolError, match="is unknown"):
        till.at(asked)
    records = till.safe.execute(List()).records
    assert [record.state for record in records if record.state is State.UNCERTAIN] == [State.UNCERTAIN]
    assert till.at(died + WITHIN) == 2


def at_once(clocks: list[float]) -> list[str]:
    """Give the same call at the same moment to several servers on one store, whose clocks differ. Returns the number of
    runs."""
    store, runs, start = MemoryStore(), list[str](), threading.Barrier(len(clocks))

    def tip(to: str) -> int:
        runs.append(to)
        return len(runs)

    def server(clock: float) -> None:
        tool = Tools(RetrySafe(store), scope="me", clock=lambda: clock).once(same_within=WITHIN)(tip)
        start.wait()
        tool(to="ann", **{CONTEXT_PARAMETER: NoMeta()})  # type: ignore[call-arg]  # the context comes with it

    threads = [threading.Thread(target=server, args=[clock]) for clock in clocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return runs


def test_two_servers_at_the_border_of_two_windows_are_one_call() -> None:
    """At the same moment their clocks are on either side of the border."""
    for attempt in range(25):
        assert at_once([START - 0.001, START, START - 0.0005, START + 0.001]) == ["ann"], f"attempt {attempt}"


def test_windows_and_what_is_over() -> None:
    assert [window_number(now, 10) for now in (0, 9, 10, 19, 20)] == [0, 0, 1, 1, 2]
    assert is_other_call(LookupReply(None, 5), 10) is False


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "10", True, 1e9])
def test_seconds_that_are_none_are_refused(seconds: Any) -> None:
    with pytest.raises(UsageError, match="same_within"):
        Tools(RetrySafe("memory://"), scope="me").once(same_within=seconds)(lambda to: to)


# Async scopes -----------------------------------------------------------------------------------------------------


async def test_an_async_scope_is_awaited() -> None:
    who, runs = ["ann"], []

    async def account(context: Context[Any, Any]) -> str:
        await asyncio.sleep(0)
        return who[0]

    with RetrySafe("memory://") as safe:
        tools, server = Tools(safe, scope=account), MCPServer("test")

        @server.tool()
        @tools.once("x:{n}")
        async def run(n: int) -> str:
            runs.append(who[0])
            return who[0]

        async with Client(server) as client:
            for name in ("ann", "bob", "ann"):
                who[0] = name
                assert await call(client, "run", n=1) == {"result": name}
    assert runs == ["ann", "bob"]


class Account:
    """An async scope that `iscoroutinefunction` does not recognise."""

    async def __call__(self, context: Any) -> str:
        return "ann"


def test_a_plain_tool_says_why_it_cannot_have_one() -> None:
    account = Account().__call__

    with RetrySafe("memory://") as safe:
        with pytest.raises(UsageError, match=r"tip is a plain function.*async def"):
            Tools(safe, scope=account).once("x:{to}", name="tip")(lambda to: to)
        hidden = Tools(safe, scope=Account()).once("x:{to}", name="tip")(lambda to: to)
        with pytest.raises(UsageError, match="tip is a plain function"):
            hidden(to="ann", **{CONTEXT_PARAMETER: NoMeta()})


async def named_later(nobody: Any) -> Any:
    return nobody


def plainly(safe: RetrySafe, nobody: Any) -> None:
    tool: Any = Tools(safe, scope=lambda context: nobody).once("x:{to}", name="tip")(lambda to: to)
    tool(to="ann", **{CONTEXT_PARAMETER: NoMeta()})


def awaited(safe: RetrySafe, nobody: Any) -> None:
    async def tip(to: str) -> str:
        return to

    tool: Any = Tools(safe, scope=lambda context: named_later(nobody)).once("x:{to}")(tip)
    asyncio.run(tool(to="ann", **{CONTEXT_PARAMETER: NoMeta()}))


@pytest.mark.parametrize("nobody", [None, "", 7])
@pytest.mark.parametrize("ask", [plainly, awaited])
def test_a_scope_that_names_nobody_is_told_so(ask: Callable[[RetrySafe, Any], None], nobody: Any) -> None:
    with RetrySafe("memory://") as safe, pytest.raises(UsageError, match=f"gave {nobody!r}: every key belongs"):
        ask(safe, nobody)
