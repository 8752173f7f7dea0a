"""Call a middleware without a server, message by message."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from retrysafe.engine.safe import RetrySafe
from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore
from retrysafe.testing.faults import AsyncFaultStore, Fault, FaultStore, Script

App = Callable[[Any, Any, Any], Awaitable[None]]


class World:
    """A RetrySafe on a memory store that fails as scripted."""

    def __init__(self, *faults: Fault, **more: Any) -> None:
        self.memory = MemoryStore()
        self.script = Script(faults)
        self.safe = RetrySafe(
            FaultStore(self.memory, self.script),
            async_store=AsyncFaultStore(AsyncMemoryStore(self.memory), self.script),
            **more,
        )

    @property
    def records(self) -> list[Any]:
        return list(self.memory._records.values())


def scope_of(method: str = "POST", path: str = "/pay", key: str | None = "k1", **more: Any) -> dict[str, Any]:
    headers = [(b"content-type", b"application/json"), (b"authorization", b"alice")]
    if key is not None:
        headers.append((b"idempotency-key", key.encode("latin-1")))
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers + more.pop("headers", []),
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), **more,
    }  # fmt: skip


class Caller:
    """One request: its body in chunks, the messages sent back, and a client that can disconnect."""

    def __init__(self, *pieces: bytes) -> None:
        last = len(pieces) - 1
        self._messages = [
            {"type": "http.request", "body": piece, "more_body": number < last} for number, piece in enumerate(pieces)
        ]
        self.left = asyncio.Event()
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        if self._messages:
            return self._messages.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])


async def call(app: App, scope: dict[str, Any] | None = None, *pieces: bytes) -> Caller:
    caller = Caller(*(pieces or (b"{}",)))
    await app(scope or scope_of(), caller.receive, caller.send)
    return caller


class Counting:
    """A plain application that counts its calls and answers with the given chunks."""

    def __init__(self, status: int = 201, pieces: Iterable[bytes] = (b"made ", b"it"), headers: Any = ()) -> None:
        self.runs = 0
        self.status = status
        self.pieces = list(pieces)
        self.headers = list(headers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        await answer(send, self.status, self.pieces, self.headers)


async def answer(send: Any, status: int, pieces: Iterable[bytes], headers: Any = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def who(request: Any) -> str | None:
    name: str | None = request.headers.get("authorization")
    return name


# WSGI ---------------------------------------------------------------------------------------------


class Strict(io.BytesIO):
    """A `wsgi.input` without an end: reading beyond the body would block for ever."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0 or self.tell() + size > len(self.getvalue()):
            raise AssertionError(f"read({size}) beyond the body would hang on wsgiref")
        return super().read(size)


class WsgiCall:
    """One request to a WSGI application, made by a strict server."""

    def __init__(self, app: Any, body: bytes = b"{}", key: str | None = "k1", **environ: Any) -> None:
        self.line = ""
        self.headers: list[tuple[str, str]] = []
        self.written: list[bytes] = []
        self.error: BaseException | None = None
        told = {
            "REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "PATH_INFO": "/pay", "QUERY_STRING": "",
            "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(body)), "HTTP_AUTHORIZATION": "alice",
            "wsgi.input": Strict(body),
        }  # fmt: skip
        if key is not None:
            told["HTTP_IDEMPOTENCY_KEY"] = key
        result = app({**told, **environ}, self._start)
        try:
            for chunk in result:
                assert self.line, "start_response comes before the first byte"
                self.written.append(chunk)
        except Exception as error:
            self.error = error
        finally:
            if hasattr(result, "close"):
                result.close()

    def _start(self, line: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        assert not self.line or exc_info, "start_response twice"
        self.line, self.headers = line, headers
        return self.written.append

    @property
    def status(self) -> int:
        return int(self.line[:3])

    @property
    def body(self) -> bytes:
        return b"".join(self.written)
