"""A shop behind our middleware on uvicorn, and a proxy in front of it that loses requests and answers.

before    the request is not forwarded, the connection closes
lost      it is forwarded, and the connection closes while the shop works on it
after     it is answered, and the answer is dropped
half      half of the answer arrives
reset     as `after`, with a RST
slow      it is answered, and the answer is held back until the client closes the connection
twice     it is forwarded twice at the same time, as by a proxy that retries
refuse    the proxy itself answers 503 with Retry-After
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from retrysafe import Policy, RetrySafe
from retrysafe.web.asgi import IdempotencyMiddleware

FATES = ("before", "lost", "after", "half", "reset", "twice", "refuse")
TROUBLE = 0.3
SLOW = 0.01
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
REFUSED = b"HTTP/1.1 503 Busy\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"


class Shop:
    """Makes an order. It sometimes fails before the effect, and never after it."""

    def __init__(self, seed: int, trouble: float) -> None:
        self.made: Counter[str] = Counter()
        self.number: dict[str, int] = {}
        self.arrived = threading.Event()
        self.hold: threading.Event | None = None
        self._random = random.Random(seed)
        self._trouble = trouble

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        order = json.loads(await _body(receive))["order"]
        if self._random.random() < self._trouble / 2:
            raise RuntimeError("the shop fell over before it did anything")
        await asyncio.sleep(self._random.random() * 0.02)  # so that a second request can find the key busy
        self.made[order] += 1
        self.number.setdefault(order, len(self.number) + 1)
        self.arrived.set()
        if self.hold is not None:
            await asyncio.to_thread(self.hold.wait, 120)
        await _answer(send, 201, {"order": order, "number": self.number[order]})


async def _body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


async def _answer(send: Any, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@dataclass
class Proxy:
    """Forwards whole requests and answers, or injects a fault."""

    shop_port: int
    seed: int
    trouble: float
    fates: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._open: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._unheard: set[asyncio.Task[bytes]] = set()
        """Requests whose answer nobody gets. asyncio itself holds a task by a weak reference only."""

    async def close(self) -> None:
        for writer in self._open.values():
            writer.close()
        while self._open or self._unheard:
            await asyncio.wait({*self._open, *self._unheard})

    def _fate(self) -> str:
        drawn = self._random.random()
        if self.trouble and drawn < SLOW:
            return "slow"
        return self._random.choice(FATES) if drawn < SLOW + self.trouble else "pass"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client or the shop closed the connection
        finally:
            writer.close()
            del self._open[task]

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Forward one request. True if the connection stays open."""
        request = await _message(reader)
        fate = self._fate()
        self.fates[fate] += 1
        if fate == "before":
            return False
        if fate == "refuse":
            writer.write(REFUSED)
            return True
        forwarded = [asyncio.create_task(self._forward(request)) for _ in range(1 + (fate == "twice"))]
        if fate == "lost":
            self._unheard.add(forwarded[0])
            forwarded[0].add_done_callback(self._forget)
            return False
        answer = (await asyncio.gather(*forwarded))[0]
        if fate == "slow":
            await reader.read(1)
            return False
        if fate == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if fate in ("after", "reset"):
            return False
        writer.write(answer[: len(answer) // 2] if fate == "half" else answer)
        await writer.drain()
        return fate != "half"

    def _forget(self, done: asyncio.Task[bytes]) -> None:
        self._unheard.discard(done)
        done.exception()  # read, so that nobody complains that it was not

    async def _forward(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.shop_port)
        try:
            writer.write(request)
            answer = await _message(reader)
            self.statuses[int(answer.split(b" ", 2)[1])] += 1
            return answer
        finally:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = LENGTH.search(head)
    return head + (await reader.readexactly(int(length[1])) if length else b"")


@dataclass
class Street:
    """The shop, its proxy, and the address that clients use."""

    shop: Shop
    proxy: Proxy
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def street(folder: Path, *, seed: int = 1, trouble: float = TROUBLE) -> Iterator[Street]:
    """Run the shop and the proxy on one event loop in a thread."""
    opened: list[Street] = []
    ready, leave = threading.Event(), threading.Event()

    async def live() -> None:
        safe = RetrySafe(f"sqlite:///{folder / 'shop.db'}")
        shop = Shop(seed, trouble)
        app = IdempotencyMiddleware(shop, safe=safe, scope=lambda _: "shop", policy=Policy(failures="release"))
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        proxy = Proxy(server.servers[0].sockets[0].getsockname()[1], seed, trouble)
        front = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        opened.append(Street(shop, proxy, front.sockets[0].getsockname()[1]))
        ready.set()
        await asyncio.to_thread(leave.wait)
        front.close()
        await proxy.close()
        server.should_exit = True
        await serving
        await safe.aclose()

    thread = threading.Thread(target=asyncio.run, args=(live(),), daemon=True)
    thread.start()
    assert ready.wait(120)
    try:
        yield opened[0]
    finally:
        leave.set()
        thread.join(120)
        assert not thread.is_alive()
