"""Health: an HTTP endpoint, on a thread of its own, that says whether the worker is healthy."""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from retrysafe.errors import UsageError
from retrysafe.worker.service import Worker
from retrysafe.worker.status import TickResult

METRICS_PATH = "/metrics"
"""Where the figures of this worker are, as text for Prometheus. Nothing there comes from a request or a record."""

LATE_TICKS = 3
"""Ticks without a report after which the worker counts as stuck."""


class Health:
    """`/metrics` has the figures. Every other path answers 200 with the last report as JSON, or 503: before the first
    report, while a service fails, and if no reports come. `busy` has the seconds of each service that is
    in a round: a long round is no reason to restart."""

    def __init__(self, worker: Worker, address: str) -> None:
        host, port = parse_address(address)
        handler = type("Handler", (_Handler,), {"worker": worker, "began": time.monotonic()})
        try:
            self._server = (_Server6 if ":" in host else ThreadingHTTPServer)((host, port), handler)
        except OSError as error:
            raise UsageError(
                f"--health {address!r}: {error.strerror or error}; give each worker of a machine an address of its own "
                "(port 0: a free one)"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="retrysafe-health", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server6(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def parse_address(address: str) -> tuple[str, int]:
    """Host and port. The host of IPv6 is in brackets, as in a URL: `[::1]:8081`."""
    host, _, port = address.rpartition(":")
    plain = host.removeprefix("[").removesuffix("]")
    if not plain or not port.isdecimal() or int(port) > 65_535 or (":" in plain) != (host != plain):
        raise UsageError(f"--health {address!r}: give HOST:PORT, for example 127.0.0.1:8081 or [::1]:8081")
    return plain, int(port)


class _Handler(BaseHTTPRequestHandler):
    worker: Worker
    began: float

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == METRICS_PATH:
            from retrysafe.engine.exposition import CONTENT_TYPE, format_metrics

            self._answer(200, CONTENT_TYPE, format_metrics(self.worker.safe.figures.snapshot()).encode())
            return
        status, report = read_health(self.worker, self.began)
        self._answer(status, "application/json", json.dumps(report).encode())

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("cache-control", "no-store")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes come every few seconds."""


def read_health(worker: Worker, began: float) -> tuple[int, dict[str, Any]]:
    """The HTTP status and the report. A service in a long round is shown as busy. A worker without reports is
    unhealthy."""
    last, now = worker.last, time.monotonic()
    silent = now - (last.ended if last is not None else began)
    busy = {name: round(now - each.began, 1) for name, each in worker.status.by_service.items() if each.began}
    failing = sorted(name for name, each in worker.status.by_service.items() if each.error is not None)
    healthy = last is not None and last.healthy and not failing and silent <= LATE_TICKS * worker.tick + 60
    rounded = round(silent, 1)
    report = {"healthy": healthy, "silent": rounded, "busy": busy, "failing": failing, "last": describe_tick(last)}
    return 200 if healthy else 503, report


def describe_tick(last: TickResult | None) -> dict[str, Any] | None:
    """A round as plain data. An error is shown by its class only, because this page is public."""
    if last is None:
        return None
    return {name: plain_count(count) for name, count in last.counts.items()} | {"seconds": round(last.seconds, 3)}


def plain_count(count: Any) -> Any:
    if isinstance(count, Exception):
        return {"error": type(count).__name__}
    return count._asdict() if hasattr(count, "_asdict") else count
