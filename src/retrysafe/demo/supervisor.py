"""Starts the provider and the shop as processes. Kills the shop when asked to (SIGKILL), and starts it again.

A spare process of the shop has loaded its program already and does nothing else, as workers do that are forked from a
loaded parent. So the shop is up again after a moment, also on a machine that is busy. It knows nothing of its
predecessor but what is in the store.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from retrysafe.demo.bus import EventBus
from retrysafe.demo.child import HOST
from retrysafe.errors import UsageError

START_SECONDS = 60.0
STOP_SECONDS = 5.0


class Child:
    """One process, and perhaps a spare. `address` is empty until it listens."""

    def __init__(self, name: str, env: dict[str, str]) -> None:
        self.name = name
        self.address = ""
        self._env = env
        self._process: asyncio.subprocess.Process | None = None
        self._spare: asyncio.subprocess.Process | None = None
        self.listening = asyncio.Event()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        if self._spare is None or self._spare.returncode is not None:
            await self.start_spare()
        self._process, self._spare = self._spare, None
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    async def start_spare(self) -> None:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "retrysafe.demo.child", self.name)
        # A session of its own: Ctrl-C reaches the demo only, which then stops its children in order.
        self._spare = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, env={**os.environ, **self._env}, start_new_session=True
        )

    async def read_reports(self) -> AsyncIterator[dict[str, Any]]:
        """What the process reports, until it ends. Lines of anybody else (a warning that was printed) are skipped."""
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            fields = read_report(line)
            if fields is None:
                continue
            if fields["what"] == "listening":
                self.address = f"http://{HOST}:{fields['port']}"
                self.listening.set()
            yield fields
        self.address = ""
        self.listening.clear()
        await self._process.wait()

    def kill(self) -> int:
        """SIGKILL: the process gets no chance to finish or to clean up."""
        assert self._process is not None
        self.address = ""
        self._process.kill()
        return self._process.pid

    async def stop(self) -> None:
        processes = (process for process in (self._process, self._spare) if process is not None)
        await asyncio.gather(*map(end_process, processes))


async def end_process(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def read_report(line: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and "what" in fields else None


async def wait_for_all(children: Iterable[Child]) -> None:
    for child in children:
        await child.listening.wait()


class Supervisor:
    def __init__(self, folder: Path, store: str, address: str, bus: EventBus) -> None:
        """`address`: the demo's own. The shop and the provider reach each other through it, never directly."""
        self._bus = bus
        secret = {"WEBHOOK_SECRET": "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()}
        database = {"PROVIDER_DB": str(folder / "provider.db")}
        self.provider = Child("provider", {**database, "WEBHOOK_URL": f"{address}/webhooks/provider", **secret})
        self.shop = Child("shop", {"RETRYSAFE_URL": store, "PROVIDER_URL": f"{address}/provider", **secret})
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def start(self) -> None:
        children = (self.provider, self.shop)
        self._tasks = [asyncio.create_task(self._keep_running(child)) for child in children]
        ready = asyncio.create_task(wait_for_all(children))
        ended = asyncio.FIRST_COMPLETED
        done, _ = await asyncio.wait((ready, *self._tasks), timeout=START_SECONDS, return_when=ended)
        if ready not in done:
            ready.cancel()
            await self.stop()
            raise UsageError("the demo's server did not start; its own message is above")

    async def _keep_running(self, child: Child) -> None:
        while not self._stopping:
            await child.start()
            listened = False
            async for fields in child.read_reports():
                self._bus.emit(**{**fields, "what": f"{child.name}.{fields['what']}"})
                if fields["what"] == "listening":
                    listened = True
                    if child is self.shop:
                        await child.start_spare()
            if not listened:
                return  # it cannot start: starting it again would not help
            if not self._stopping:
                self._bus.emit(f"{child.name}.ended")

    def kill_shop(self, **fields: Any) -> None:
        self._bus.emit("shop.killed", pid=self.shop.kill(), **fields)

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(self.shop.stop(), self.provider.stop())
        await asyncio.gather(*self._tasks, return_exceptions=True)
