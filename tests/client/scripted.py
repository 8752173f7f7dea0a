"""A server on a real socket that does what a list says, one item per request; afterwards it answers 200.

Reply(503, {"retry-after": "2"})     an answer
Drop("before")                       reads the request and closes, nothing was done
Drop("after")                        does it, and closes without an answer
Drop("middle")                       does it, and closes in the middle of the answer's body
    Drop("head")                         does it, and closes in the middle of the answer's headers
Silence                              does it, and says nothing until the client has left
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from retrysafe.engine.problem_documents import build_page_address
from tests.servers.ports import free_port


class Reply(NamedTuple):
    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012  (never written to)
    body: bytes = b"{}"


class Drop(NamedTuple):
    when: Literal["before", "after", "middle", "head"]


class Silence(NamedTuple):
    pass


Reaction = Reply | Drop | Silence


class Got(NamedTuple):
    method: str
    path: str
    key: str | None
    body: bytes
    headers: dict[str, str]


def problem(status: int, kind: str, same: bool, new: bool, **headers: str) -> Reply:
    body = {"type": build_page_address(kind), "status": status, "retry_same_key": same, "safe_new_key": new}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"content-type": "application/problem+json", **named}, json.dumps(body).encode())


@dataclass
class Script:
    """The actions to come, and the requests so far."""

    port: int
    todo: list[Reaction] = field(default_factory=list)
    got: list[Got] = field(default_factory=list)
    done: list[str | None] = field(default_factory=list)
    """The key of each effect, one entry per effect."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def keys(self) -> list[str | None]:
        return [one.key for one in self.got]

    def then(self, *reactions: Reaction) -> Script:
        self.todo += reactions
        return self

    def apply(self, key: str | None) -> None:
        if key is None or key not in self.done:
            self.done.append(key)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 120

    def handle_one(self) -> None:
        script: Script = self.server.script  # type: ignore[attr-defined]  # set by `serving`
        body = self._body()
        key = self.headers.get("idempotency-key")
        headers = {name.lower(): value for name, value in self.headers.items()}
        script.got.append(Got(self.command, self.path, key, body, headers))
        reaction = script.todo.pop(0) if script.todo else Reply(200, {}, b'{"ok": true}')
        if isinstance(reaction, Reply):
            if reaction.status < 300:
                script.apply(key)
            return self._answer(reaction)
        self.close_connection = True
        if reaction == Drop("before"):
            return None
        script.apply(key)
        if reaction == Drop("middle"):
            return self._answer(Reply(200, {"content-length": "1000"}, b'{"half":'))
        if reaction == Drop("head"):
            self.wfile.write(b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\n")
        if isinstance(reaction, Silence):
            self.connection.settimeout(120)
            self.connection.recv(1)  # returns when the client closes the connection
        return None

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = handle_one  # noqa: N815  (http.server asks for them)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("content-length", "0")))

    def _answer(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in {"content-length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def log_message(self, *args: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, address: Any) -> None:
        """Print nothing: these tests close connections on purpose."""


@contextmanager
def serving() -> Iterator[Script]:
    server = Server(("127.0.0.1", 0), Handler)
    script = Script(server.server_port)
    server.script = script  # type: ignore[attr-defined]  # read by the handler
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def refused() -> str:
    """An address without a server."""
    return f"http://127.0.0.1:{free_port()}"
