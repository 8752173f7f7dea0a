"""An application in a process of its own, and what requests to it cost."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Literal, TextIO

from tests.servers.ports import free_port

from benchmarks import noise
from benchmarks.apps import TUNED
from benchmarks.environment import ROOT, SPEEDUPS_SWITCH
from benchmarks.harness import AsyncWork, LoopBench
from benchmarks.http import Client

Kind = Literal["new keys", "replays", "one hot key", "no key"]
REPLAYED: dict[Kind, int] = {"replays": 64, "one hot key": 1}
"""How many keys are sent again and again."""


@dataclass(frozen=True)
class Served:
    """Where it listens, and who it is."""

    port: int
    pid: int

    def cpu(self) -> float:
        """CPU seconds so far, of the server and its workers."""
        return sum(noise.threads_of(pid) for pid in [self.pid, *_children(self.pid)])


def _children(pid: int) -> list[int]:
    try:
        text = (noise.PROC / str(pid) / "task" / str(pid) / "children").read_text()
    except OSError:
        return []
    return [int(each) for each in text.split()]


@contextmanager
def served(
    python: str, module: str, kind: str, url: str, *, speedups: bool = False, tuned: bool = False
) -> Iterator[Served]:
    """Start `module`; ready when it accepts a connection."""
    port = free_port()
    command = [python, "-m", f"benchmarks.apps.{module}", kind, str(port), url]
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    env = {**os.environ, "PYTHONPATH": path, SPEEDUPS_SWITCH: "on" if speedups else "off", TUNED: str(int(tuned))}
    with tempfile.TemporaryFile("w+") as said:  # a pipe nobody reads would stop a talkative one
        process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=said)
        try:
            _await(process, port, said)
            yield Served(port, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(process: subprocess.Popen[bytes], port: int, said: TextIO) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            if process.poll() is not None:
                said.seek(0)
                last = (said.read().strip().splitlines() or ["without a word"])[-1]
                raise RuntimeError(f"it did not start: {last}") from None
            if time.monotonic() > deadline:
                raise RuntimeError("it did not start within a minute") from None
            time.sleep(0.05)


class WebBench(LoopBench):
    """Requests of one kind to one application. The CPU is the server's: it hardly depends on who else is at work."""

    def __init__(self, name: str, at: Served, kind: Kind, optional: bool) -> None:
        self.client = Client(at.port)
        self.optional = optional
        self._at = at
        self._kind = kind
        super().__init__(name, partial(requests, self.client, kind, strict=not optional), _fast_loop())

    def cpu(self) -> float:
        return self._at.cpu()

    def wrong(self) -> dict[int, float]:
        """Shares of answers other than 201: wrong ones, measured all the same."""
        total = sum(self.client.statuses.values())
        return {status: number / total for status, number in sorted(self.client.statuses.items()) if status != 201}

    def remarks(self) -> list[str]:
        told = ", ".join(f"{100 * share:.1f} % answered {status}" for status, share in self.wrong().items())
        return [f"{self.name}: wrong answers, {told}"] if told else []


def _fast_loop() -> Any:
    """The client should cost as little as it can: it shares the cores."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@asynccontextmanager
async def requests(client: Client, kind: Kind, strict: bool) -> AsyncIterator[AsyncWork]:
    """Ours must answer 201 every time; what others answer is counted."""
    numbers, run, replayed = count(), os.urandom(8).hex(), REPLAYED.get(kind, 0)

    def key() -> str | None:
        if kind == "no key":
            return None
        number = next(numbers)
        return f"{run}-{number % replayed if replayed else number}"

    async def one() -> None:
        status = await client.post("/payments", key())
        if strict and status != 201:
            raise RuntimeError(f"{kind}: answered {status}")

    for _ in range(replayed):
        await one()
    if replayed:
        client.statuses.clear()
    yield one
    client.close()
    await asyncio.sleep(0)
