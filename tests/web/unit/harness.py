"""Call a middleware without a server, message by message."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from retrysafe.engine.safe import RetrySafe
from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore
from retrysafe.testing import asgi_client
from retrysafe.testing.asgi_client import AsgiApp as App
from retrysafe.testing.asgi_client import AsgiCall as Caller
from retrysafe.testing.asgi_client import build_scope
from retrysafe.testing.faults import AsyncFaultStore, Fault, FaultStore, Script


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
    headers = [(b"authorization", b"alice"), *more.pop("headers", ())]
    return build_scope(path, key, method=method, headers=headers, **more)


async def call(app: App, scope: dict[str, Any] | None = None, *pieces: bytes) -> Caller:
    return await asgi_client.call(app, scope or scope_of(), *pieces)


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
