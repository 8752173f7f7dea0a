"""An HTTP proxy in front of DynamoDB that loses, refuses or fails a request exactly where a test says.

- `before`: the request is not forwarded; the client sees the connection go.
- `swallow`: the request is carried out, and nobody ever sees the answer.
- `fail`: it is carried out, and the client is told 500.
- `throttle`: it is not carried out, and the client is told that this was too much.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from tests.servers.dynamodb import endpoint_of

How = Literal["", "before", "swallow", "fail", "throttle"]
DEADLINE = 60.0
READS = ("GetItem", "DescribeTable", "BatchGetItem", "Query", "Scan")


class DynamoProxy:
    """`url` is the server's URL through it. `seen` names the operations that arrived since the last `lose`."""

    def __init__(self, server_url: str) -> None:
        self.endpoint = endpoint_of(server_url)
        self.seen: list[str] = []
        self.lost = 0
        self._how: How = ""
        self._left = 0
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = _Quiet(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = server_url.replace(self.endpoint, f"http://127.0.0.1:{self._server.server_port}")
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="proxy", daemon=True).start()

    def lose(self, how: How, times: int = 1, *, reads: bool = False) -> None:
        """The next so many writes (reads, too, if asked) meet this fate."""
        with self._lock:
            self.seen, self.lost, self._how, self._left, self._reads = [], 0, how, times, reads

    def fate(self, operation: str) -> How:
        with self._lock:
            self.seen.append(operation)
            if self._left == 0 or (operation in READS and not self._reads):
                return ""
            self._left -= 1
            self.lost += 1
            return self._how

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is nothing to report."""


class _Handler(BaseHTTPRequestHandler):
    proxy: DynamoProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        operation = self.headers["X-Amz-Target"].partition(".")[2]
        how = self.proxy.fate(operation)
        if how == "throttle":
            return self._answer(400, [], error("ProvisionedThroughputExceededException"))
        if how == "before":
            return self._hang_up()
        status, headers, answer = self._forward(body)
        if how == "swallow":
            return self._hang_up()
        if how == "fail":
            return self._answer(500, [], error("InternalServerError"))
        return self._answer(status, headers, answer)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        upstream = http.client.HTTPConnection(self.proxy.endpoint.removeprefix("http://"), timeout=DEADLINE)
        try:
            upstream.request("POST", self.path, body, dict(self.headers.items()))
            reply = upstream.getresponse()
            return reply.status, reply.getheaders(), reply.read()
        finally:
            upstream.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests say what they saw."""


def error(code: str) -> bytes:
    return json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "as the test wants"}).encode()
