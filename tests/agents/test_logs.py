"""S28: the SDK logs what a tool refused. So our refusals name the record and not the key."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer

from retrysafe.core.keys import record_id
from retrysafe.core.ops import List, Suspect
from retrysafe.core.records import Fingerprint
from retrysafe.engine.safe import RetrySafe
from retrysafe.mcp import META_KEY, Tools
from retrysafe.testing.builders import claim

KEY, SCOPE = "canary-key-4242", "canary-scope-77"


def server(safe: RetrySafe) -> MCPServer:
    tools, made = Tools(safe, scope=SCOPE), MCPServer("bank")

    @made.tool()
    @tools.once()
    async def pay(cents: int) -> str:
        return "paid"

    return made


async def call(client: Client, key: str, cents: int = 1) -> Any:
    meta: Any = {META_KEY: key}
    result = await client.call_tool("pay", {"cents": cents}, meta=meta)
    return result.content[0].text if result.is_error else ""  # type: ignore[union-attr]  # an error is text


def died(safe: RetrySafe, fingerprint: Fingerprint) -> None:
    """A call with our key that was begun and whose outcome is unknown."""
    begun = claim(f"pay meta:{KEY}", scope=SCOPE, kind="tool", namespace="default", fingerprint=fingerprint, now=None)
    record = safe.execute(begun).record
    assert safe.execute(Suspect(record.id, record.fence, "died"))


def scan(caplog: pytest.LogCaptureFixture) -> str:
    """The SDK's lines at INFO and above, and all of ours. At DEBUG the SDK logs whole requests, which is not ours to
    change."""
    formatter = logging.Formatter("%(levelname)s %(name)s %(message)s")
    lines = [formatter.format(each) for each in caplog.records if each.levelno >= logging.INFO]
    lines += [formatter.format(each) for each in caplog.records if each.name.startswith("retrysafe")]
    text = "\n".join(lines)
    assert "'pay'" in text, "nothing was logged: there is nothing to scan"
    return text


@pytest.mark.parametrize("trouble", ["mismatch", "unknown"])
async def test_what_a_tool_refuses_names_the_record(caplog: pytest.LogCaptureFixture, trouble: str) -> None:
    caplog.set_level(logging.INFO)
    with RetrySafe("memory://") as safe:
        async with Client(server(safe)) as client:
            if trouble == "mismatch":
                await call(client, KEY, cents=2)
            else:
                await call(client, "another key")
                died(safe, safe.execute(List()).records[0].fingerprint)
            text = await call(client, KEY)
    assert record_id("tool", "default", SCOPE, f"pay meta:{KEY}").hex()[:16] in text
    assert "canary" not in text + scan(caplog)


async def test_a_key_that_cannot_be_one_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with RetrySafe("memory://") as safe:
        async with Client(server(safe)) as client:
            text = await call(client, KEY + "\n")
    assert "1 to 255 printable" in text
    assert "canary" not in text + scan(caplog)
