"""For the durable recipes: somebody else's API that can kill whoever calls it, and programs that can be killed."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.servers.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PATIENCE = 180.0
"""For a machine that does ten other things; nothing waits for it when all is well."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Charges recognise an Idempotency-Key; labels are printed as often as they are asked for."""

    server: ProviderDouble

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["content-length"])))
        made = self.server.apply(self.path, told["account"], self.headers.get("idempotency-key", ""))
        killed = self.server.deadly.pop(self.path, None)
        if killed is not None:  # the effect is there; whoever asked for it will not hear of it
            killed()
            return
        body = json.dumps({"id": made}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


class ProviderDouble(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.charges: dict[str, str] = {}
        """By key: who was charged."""
        self.labels: list[str] = []
        self.requests: Counter[str] = Counter()
        self.deadly: dict[str, Callable[[], None]] = {}
        """Who is killed by the next request to a path, after it had its effect."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def apply(self, path: str, account: str, key: str) -> str:
        with self.lock:
            self.requests[path] += 1
            if path == "/labels":
                self.labels.append(account)
                return f"label_{len(self.labels)}"
            self.charges.setdefault(key, account)
            return f"ch_{list(self.charges).index(key)}"

    def charged(self, account: str) -> int:
        return list(self.charges.values()).count(account)

    def labelled(self, account: str) -> int:
        return self.labels.count(account)


@contextmanager
def provider_double() -> Iterator[ProviderDouble]:
    server = ProviderDouble()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Program:
    """A Python program of the tests, in a process of its own."""

    def __init__(self, folder: Path, module: str, *arguments: str) -> None:
        self.log = folder / f"{module.rpartition('.')[2]}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DBOS")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def was_killed(self) -> None:
        """It dies, and by nothing but SIGKILL."""
        assert self.process.wait(PATIENCE) == -signal.SIGKILL, self.said()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


class WebProgram(Program):
    """… which listens on a port."""

    def __init__(self, folder: Path, module: str, *arguments: str) -> None:
        self.port = free_port()
        super().__init__(folder, module, *arguments, str(self.port))

    def ready(self) -> WebProgram:
        until(self._listens, PATIENCE, f"port {self.port} to listen")
        return self

    def _listens(self) -> bool:
        assert self.process.poll() is None, f"it ended: {self.said()}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def post(self, path: str, account: str, cents: int, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"account": account, "cents": cents}
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.post(url, json=body, headers={"x-account": account, **named}, timeout=PATIENCE)
