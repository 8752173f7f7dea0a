"""Whether the worker is well, for whoever restarts processes: an HTTP endpoint on a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from retrysafe.errors import UsageError
from retrysafe.worker.service import Worker
from retrysafe.worker.status import TickResult

LATE_TICKS = 3
"""After so many ticks without a report the worker counts as stuck."""


class Health:
    """200 and the last report as JSON; 503 before the first, while a service fails, and when reports stop coming.
    `busy` says how long each service that is at work has been: a round that takes long is no reason to restart."""

    def __init__(self, worker: Worker, address: str) -> None:
        host, port = host_and_port(address)
        handler = type("Handler", (_Handler,), {"worker": worker, "began": time.monotonic()})
        self._server = ThreadingHTTPServer((host, port), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="retrysafe-health", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"--health {address!r}: give HOST:PORT, for example 127.0.0.1:8081")
    return host, int(port)


class _Handler(BaseHTTPRequestHandler):
    worker: Worker
    began: float

    def do_GET(self) -> None:
        status, told = read_health(self.worker, self.began)
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("cache-control", "no-store")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds; nobody wants to read of them."""


def read_health(worker: Worker, began: float) -> tuple[int, dict[str, Any]]:
    """A service that takes long is at work, and shown with its seconds; one that nobody hears of any more is dead."""
    last, now = worker.last, time.monotonic()
    silent = now - (last.ended if last is not None else began)
    busy = {name: round(now - post.began, 1) for name, post in worker.status.by_service.items() if post.began}
    failing = sorted(name for name, post in worker.status.by_service.items() if post.error is not None)
    well = last is not None and last.healthy and not failing and silent <= LATE_TICKS * worker.tick + 60
    told = {"healthy": well, "silent": round(silent, 1), "busy": busy, "failing": failing, "last": describe_tick(last)}
    return 200 if well else 503, told


def describe_tick(last: TickResult | None) -> dict[str, Any] | None:
    """A round as plain data; of an error only its kind: this page has no lock on it."""
    if last is None:
        return None
    return {name: plain_count(count) for name, count in last.counts.items()} | {"seconds": round(last.seconds, 3)}


def plain_count(count: Any) -> Any:
    if isinstance(count, Exception):
        return {"error": type(count).__name__}
    return count._asdict() if hasattr(count, "_asdict") else count
