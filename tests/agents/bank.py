"""An MCP server over stdio, whose tools move money: each transfer is a line in a file.

    python -m tests.agents.bank FOLDER [MOMENT]

MOMENT is where it kills itself (SIGKILL): `answer`, when a result is stored and not yet sent; `tool`, in the middle of
a tool, after its effect.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from retrysafe.engine.events import RecordEvent
from retrysafe.engine.safe import RetrySafe
from retrysafe.mcp import Tools
from retrysafe.policy import Policy


@dataclass
class Receipt:
    number: int
    to: str
    cents: int


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def bank(folder: Path, moment: str = "", lease: float = 60.0) -> MCPServer:
    def kill_on_event(event: RecordEvent) -> None:
        if moment == "answer" and event.name == "completed":
            die()

    safe = RetrySafe(f"sqlite:///{folder / 'bank.db'}", on_event=kill_on_event)
    tools = Tools(safe, scope="acct-1", policy=Policy.preset("function", lease=lease, wait=60))
    server = MCPServer("bank")

    def moved(to: str, cents: int) -> Receipt:
        with (folder / "transfers").open("a+") as transfers:
            transfers.write(f"{to} {cents}\n")
            transfers.seek(0)
            number = len(transfers.readlines())
        if moment == "tool":
            die()
        return Receipt(number, to, cents)

    @server.tool()
    @tools.once("pay:{invoice}")
    async def pay_invoice(invoice: str, to: str, cents: int) -> Receipt:
        """Pay an invoice."""
        await asyncio.sleep(0.05)
        return moved(to, cents)

    @server.tool()
    @tools.once()
    def send(to: str, cents: int, idempotency_key: str = "") -> Receipt:
        """Send money."""
        if cents <= 0:
            raise ToolError("nothing to send")
        return moved(to, cents)

    @server.tool()
    @tools.once(same_within=3600)
    async def tip(to: str, cents: int, ctx: Context[Any, Any]) -> Receipt:
        """Tip somebody."""
        assert ctx.request_id
        return moved(to, cents)

    @server.tool()
    @tools.once()
    async def harness_only(to: str, cents: int) -> Receipt:
        """Only for clients that send a key."""
        return moved(to, cents)

    return server


if __name__ == "__main__":
    bank(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "").run("stdio")
