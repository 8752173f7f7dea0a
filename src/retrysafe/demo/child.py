"""Run the shop or the provider as a process: `python -m retrysafe.demo.child shop`.

It loads its program and waits for a line on its standard input. Until then it is a spare. Then it listens on a free
port and writes JSON lines to its standard output: first `listening`, with the port; then, if it is the shop, what
happens to records. It ends when its standard input is closed, so it never outlives the demo.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextvars import ContextVar
from typing import Any

import uvicorn

from retrysafe.engine.events import RecordEvent
from retrysafe.engine.safe import RetrySafe

HOST = "127.0.0.1"
REQUEST_HEADER = b"x-demo-request"

_current_request: ContextVar[str] = ContextVar("current_request", default="")


def report(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class RequestNames:
    """ASGI middleware: remembers which request of the page an event belongs to."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            _current_request.set(dict(scope["headers"]).get(REQUEST_HEADER, b"").decode("latin-1"))
        await self._app(scope, receive, send)


class ChildServer(uvicorn.Server):
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            report(what="listening", port=port, pid=os.getpid())

    def stop_with_parent(self) -> None:
        sys.stdin.buffer.read()
        self.should_exit = True


def watch_records(safe: RetrySafe) -> None:
    def report_event(event: RecordEvent) -> None:
        report(what=event.name, record=event.id, request=_current_request.get())

    safe.events.subscribe(report_event)


def load_app(name: str) -> Any:
    if name == "provider":
        from retrysafe.demo import provider

        return provider.app
    RetrySafe.on_made.append(watch_records)
    from retrysafe.demo import shop

    return RequestNames(shop.app)


def main(name: str) -> None:
    config = uvicorn.Config(load_app(name), host=HOST, port=0, log_level="warning", timeout_graceful_shutdown=3)
    if not sys.stdin.buffer.readline():
        return  # a spare that was not needed
    server = ChildServer(config)
    threading.Thread(target=server.stop_with_parent, daemon=True).start()
    server.run()


if __name__ == "__main__":
    main(sys.argv[1])
