"""Tools that are called again by a model, by a harness, and after the server was killed: the money moves once.

The tests use the SDK's own client and server, in the process and over stdio.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from retrysafe.core.ops import List, Suspect
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.mcp import META_KEY, Tools
from tests.agents.bank import bank

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 120.0


def transfers(folder: Path) -> list[str]:
    path = folder / "transfers"
    return path.read_text().splitlines() if path.exists() else []


def over_stdio(folder: Path, moment: str = "") -> Client:
    command = ["-m", "tests.agents.bank", str(folder), *([moment] if moment else [])]
    return Client(
        StdioServerParameters(command=sys.executable, args=command, cwd=ROOT), read_timeout_seconds=TIMEOUT_SECONDS
    )


async def call(client: Client, tool: str, meta: dict[str, Any] | None = None, **given: Any) -> Any:
    result = await client.call_tool(tool, given, meta=meta)  # type: ignore[arg-type]  # an open map
    text = result.content[0].text if result.content else ""  # type: ignore[union-attr]  # our tools answer with text
    assert not result.is_error, text
    return result.structured_content


async def refused(client: Client, tool: str, meta: dict[str, Any] | None = None, **given: Any) -> str:
    result = await client.call_tool(tool, given, meta=meta)  # type: ignore[arg-type]  # an open map
    assert result.is_error
    return str(result.content[0].text)  # type: ignore[union-attr]  # our tools answer with text


# The key of a call ----------------------------------------------------------------------------------------------------


async def test_by_what_the_developer_named(tmp_path: Path) -> None:
    async with Client(bank(tmp_path)) as client:
        first = await call(client, "pay_invoice", invoice="inv-1", to="ann", cents=500)
        again = await call(client, "pay_invoice", invoice="inv-1", to="ann", cents=500)
        other = await call(client, "pay_invoice", invoice="inv-2", to="ann", cents=500)
        assert first == again == {"number": 1, "to": "ann", "cents": 500}
        assert other["number"] == 2
        text = await refused(client, "pay_invoice", invoice="inv-1", to="bob", cents=500)
        assert "first used with a different request" in text
    assert transfers(tmp_path) == ["ann 500", "ann 500"]


async def test_by_what_the_model_chose(tmp_path: Path) -> None:
    async with Client(bank(tmp_path)) as client:
        for key, number in (("a", 1), ("a", 1), ("b", 2)):
            assert (await call(client, "send", to="ann", cents=5, idempotency_key=key))["number"] == number
        assert "pass idempotency_key" in await refused(client, "send", to="ann", cents=5)
        assert "printable" in await refused(client, "send", to="ann", cents=5, idempotency_key="\n")
    assert transfers(tmp_path) == ["ann 5"] * 2


async def test_by_what_the_harness_sent(tmp_path: Path) -> None:
    async with Client(bank(tmp_path)) as client:
        for key, number in (("a", 1), ("a", 1), ("b", 2)):
            assert (await call(client, "harness_only", {META_KEY: key}, to="ann", cents=5))["number"] == number
        for key in ("c", "d"):
            same = await call(client, "send", {META_KEY: "k"}, to="ann", cents=5, idempotency_key=key)
            assert same["number"] == 3, "a harness that retries knows better than a model that is asked again"
        assert "the client must send a key" in await refused(client, "harness_only", to="ann", cents=5)
        assert "printable" in await refused(client, "harness_only", {META_KEY: 7}, to="ann", cents=5)
    assert transfers(tmp_path) == ["ann 5"] * 3


async def test_by_equal_arguments_where_that_was_asked_for(tmp_path: Path) -> None:
    async with Client(bank(tmp_path)) as client:
        assert [(await call(client, "tip", to=to, cents=5))["number"] for to in ("ann", "ann", "bob")] == [1, 1, 2]


async def test_the_same_key_of_two_tools_is_two_keys(tmp_path: Path) -> None:
    async with Client(bank(tmp_path)) as client:
        await call(client, "send", {META_KEY: "k"}, to="ann", cents=5)
        await call(client, "harness_only", {META_KEY: "k"}, to="ann", cents=5)
    assert len(transfers(tmp_path)) == 2


async def test_a_tool_that_refused_may_be_called_again(tmp_path: Path) -> None:
    async with Client(bank(tmp_path)) as client:
        for _ in range(2):
            assert "nothing to send" in await refused(client, "send", to="ann", cents=0, idempotency_key="k")
    assert transfers(tmp_path) == []


async def test_the_schema_is_the_tool_s_own(tmp_path: Path) -> None:
    async with Client(bank(tmp_path)) as client:
        shown = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(shown["pay_invoice"].input_schema["properties"]) == ["invoice", "to", "cents"]
    assert list(shown["tip"].input_schema["properties"]) == ["to", "cents"]
    assert shown["send"].input_schema["required"] == ["to", "cents"]
    assert shown["pay_invoice"].description == "Pay an invoice."
    assert set(shown["pay_invoice"].output_schema["properties"]) == {"number", "to", "cents"}  # type: ignore[index]


# At the same time, and killed -----------------------------------------------------------------------------------------


async def test_ten_at_once_are_one_in_two_servers(tmp_path: Path) -> None:
    """One server is in this process and one in its own; both use one store."""
    async with Client(bank(tmp_path)) as one, over_stdio(tmp_path) as other:
        calls = [call(client, "pay_invoice", invoice="i", to="ann", cents=5) for client in (one, other) * 5]
        results = await asyncio.gather(*calls)
    assert results == [{"number": 1, "to": "ann", "cents": 5}] * 10
    assert transfers(tmp_path) == ["ann 5"]


async def lost(client: Client, **given: Any) -> None:
    """A call whose server dies before it answers."""
    with pytest.raises(Exception, match=r".*") as gone:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await client.call_tool("pay_invoice", given)
    assert not isinstance(gone.value, TimeoutError)


async def test_killed_when_the_result_was_stored_and_not_sent(tmp_path: Path) -> None:
    invoice = {"invoice": "i", "to": "ann", "cents": 5}
    async with over_stdio(tmp_path, "answer") as doomed:
        await lost(doomed, **invoice)
    async with over_stdio(tmp_path) as client:
        assert await call(client, "pay_invoice", **invoice) == {"number": 1, "to": "ann", "cents": 5}
    assert transfers(tmp_path) == ["ann 5"]


async def test_killed_in_the_middle_the_outcome_is_unknown_and_nothing_runs_again(tmp_path: Path) -> None:
    invoice = {"invoice": "i", "to": "ann", "cents": 5}
    async with over_stdio(tmp_path, "tool") as doomed:
        await lost(doomed, **invoice)
    with RetrySafe(f"sqlite:///{tmp_path / 'bank.db'}") as safe:  # as the sweeper does after the lease has lapsed
        (record,) = safe.execute(List()).records
        assert safe.execute(Suspect(record.id, record.fence, "its server died"))
    async with Client(bank(tmp_path)) as client:
        text = await refused(client, "pay_invoice", **invoice)
    assert "is unknown" in text
    assert "will not run again" in text
    assert transfers(tmp_path) == ["ann 5"]


# Mistakes -------------------------------------------------------------------------------------------------------------


def test_mistakes_are_found_when_decorating() -> None:
    with RetrySafe("memory://") as safe:
        with pytest.raises(UsageError, match="belongs to somebody"):
            Tools(safe, scope="")
        tools = Tools(safe, scope="me")

        def tool(to: str) -> str:
            return to

        with pytest.raises(UsageError, match="no such argument"):
            tools.once("pay:{invoice}")(tool)
        with pytest.raises(UsageError, match="leave same_within out"):
            tools.once("pay:{to}", same_within=60)(tool)
        with pytest.raises(UsageError, match="no such argument"):
            tools.once(ignore=["from"])(tool)

        async def streaming(to: str) -> Any:
            yield to

        with pytest.raises(UsageError, match="generator"):
            tools.once("x:{to}")(streaming)


async def test_whose_calls_they_are(tmp_path: Path) -> None:
    """The scope is the caller's: two accounts may use the same key."""
    from mcp.server.mcpserver import Context, MCPServer

    with RetrySafe("memory://") as safe:
        who, runs = ["ann"], []

        def account(context: Context[Any, Any]) -> str:
            assert context.request_id
            return who[0]

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
