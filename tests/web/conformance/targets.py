"""Running examples: a server process, its folder, and a client for it.

To run the cases against another example, add it to `TARGETS`: how its server is started (`{port}` and `{workers}` are
filled in). The application must be the reference application (tests/web/apps/reference.py says what that is).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from tests.servers.ports import free_port
from tests.web.apps import reference

ROOT = Path(__file__).parents[3]
DEADLINE = 60.0
ALICE, BOB = "token-alice", "token-bob"


@dataclass(frozen=True)
class Launch:
    """How an example is started, and what its server can do."""

    command: tuple[str, ...]
    workers: bool = False
    """True if it can run several processes."""
    chunked: bool = True
    """True if its server accepts request bodies without a length."""
    stores: tuple[str, ...] = ("sqlite",)


def uvicorn(app: str, **more: Any) -> Launch:
    command = ("-m", "uvicorn", app, "--port", "{port}", "--workers", "{workers}", "--log-level", "warning")
    return Launch(command, workers=True, **more)


def gunicorn(app: str, **more: Any) -> Launch:
    command = (
        "-m",
        "gunicorn",
        app,
        "-b",
        "127.0.0.1:{port}",
        "-w",
        "{workers}",
        "--threads",
        "16",
        "--timeout",
        "120",  # on a busy machine a slow worker is not a hung one
        "--no-control-socket",
    )
    return Launch(command, workers=True, **more)


def hypercorn(app: str, **more: Any) -> Launch:
    return Launch(
        ("-m", "hypercorn", app, "--bind", "127.0.0.1:{port}", "--workers", "{workers}"), workers=True, **more
    )


EVERYWHERE = ("sqlite", "postgres", "redis")

TARGETS: dict[str, Launch] = {
    "uvicorn": uvicorn("tests.web.apps.asgi_app:app", stores=EVERYWHERE),
    "uvicorn-deferred": uvicorn("tests.web.apps.asgi_app:deferred"),
    "hypercorn": hypercorn("tests.web.apps.asgi_app:app"),
    "gunicorn": gunicorn("tests.web.apps.wsgi_app:app", stores=EVERYWHERE),
    "gunicorn-deferred": gunicorn("tests.web.apps.wsgi_app:deferred"),
    "fastapi": uvicorn("tests.web.apps.fastapi_app:app"),
    "fastapi-hypercorn": hypercorn("tests.web.apps.fastapi_app:app"),
    "litestar": uvicorn("tests.web.apps.litestar_app:app"),
    "quart": hypercorn("tests.web.apps.quart_app:app"),
    "quart-uvicorn": uvicorn("tests.web.apps.quart_app:app"),
    "flask": gunicorn("tests.web.apps.flask_app:app"),
    "flask-dev": Launch(("-m", "tests.web.apps.flask_app", "{port}")),
    "django": gunicorn("tests.web.apps.django_app:wsgi"),
    "django-drf": gunicorn("tests.web.apps.django_drf:wsgi"),
    "django-asgi": uvicorn("tests.web.apps.django_async:asgi"),
    "django-asgi-inner": uvicorn("tests.web.apps.django_async:asgi_inner"),
    "wsgiref": Launch(("-m", "tests.web.apps.wsgi_app", "{port}"), chunked=False),
}


@dataclass
class Target:
    """One running example."""

    name: str
    launch: Launch
    url: str
    """The store's."""
    folder: Path
    workers: int = 1
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    http: httpx.Client = field(init=False)

    def start(self) -> Target:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tokens({ALICE: ("alice", True), BOB: ("bob", True)})
        filled = [part.format(port=self.port, workers=self.workers) for part in self.launch.command]
        places = {"RETRYSAFE_URL": self.url, "REFERENCE_DIR": str(self.folder), "PYTHONPATH": str(ROOT)}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *filled],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **places},
                start_new_session=True,
            )
        # A connection for each request: some servers close an idle one just as the next request is on its way.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.http = httpx.Client(base_url=self.base, timeout=DEADLINE, limits=limits)
        self.wait_for(self._ready)
        return self

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9, master and workers: no process can clean up."""
        self._end(signal.SIGKILL)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    # Beside HTTP ----------------------------------------------------------------------------------

    def tokens(self, accounts: dict[str, tuple[str, bool]]) -> None:
        told = {token: {"account": account, "allowed": allowed} for token, (account, allowed) in accounts.items()}
        draft = self.folder / f"tokens-{uuid4().hex}"
        draft.write_text(json.dumps(told))
        draft.replace(self.folder / "tokens.json")

    def go(self, tag: str) -> None:
        (self.folder / f"go-{tag}").touch()

    def executions(self, tag: str) -> int:
        return reference.executions(self.folder, tag)

    def began(self, tag: str, times: int = 1) -> None:
        """Wait until a handler has begun."""
        self.wait_for(lambda: self.executions(tag) >= times)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.name}: waited {DEADLINE:.0f} s for nothing\n{self.log()[-4000:]}")
            time.sleep(0.01)

    # HTTP -----------------------------------------------------------------------------------------

    def send(
        self, method: str, path: str, key: str | None = None, *, tag: str | None = None, token: str | None = ALICE,
        content: Any = b'{"amount": 10}', headers: dict[str, str] | None = None,
    ) -> httpx.Response:  # fmt: skip
        return self.http.request(method, path, content=content, headers=self.headers(key, tag, token, headers))

    def post(self, path: str, key: str | None = None, **more: Any) -> httpx.Response:
        return self.send("POST", path, key, **more)

    @staticmethod
    def headers(
        key: str | None, tag: str | None = None, token: str | None = ALICE, more: dict[str, str] | None = None
    ) -> dict[str, str]:
        told = {"Content-Type": "application/json", "X-Tag": tag or key or "-"}
        if key is not None:
            told["Idempotency-Key"] = key
        if token is not None:
            told["Authorization"] = f"Bearer {token}"
        return told | (more or {})

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE)

    def raw(self, request: bytes) -> bytes:
        """Send these bytes, and read until the server closes."""
        with self.connect() as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    # How ------------------------------------------------------------------------------------------

    def _ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}\n{self.log()[-4000:]}")
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def _end(self, number: int) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        self.http.close()
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(DEADLINE / 2)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a worker that its master did not end
        process.wait()


def new_key() -> str:
    return uuid4().hex
