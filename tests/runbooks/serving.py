"""The application of the runbooks as a server: `python -m tests.runbooks.serving PORT [BUSY]`.

POST /pay is protected; GET /metrics shows the figures. While a file named `slow` is in the folder, the work goes on
until a second request has met it: so a storm of retries always does, however slow the machine is."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from retrysafe import Policy, RetrySafe
from retrysafe.engine.exposition import format_metrics
from retrysafe.web.wsgi import IdempotencyMiddleware

URL = os.environ["RETRYSAFE_URL"]
SLOW = Path(URL.removeprefix("sqlite:///")).parent / "slow"
LONGEST_SECONDS = 60.0

safe = RetrySafe(URL)


def count(what: str) -> int:
    return sum(number for name, labels, number in safe.figures.list_counts() if what in (name, labels[0]))


def application(environ: Any, start_response: Any) -> list[bytes]:
    if environ["PATH_INFO"] == "/metrics":
        start_response("200 OK", [("content-type", "text/plain")])
        return [format_metrics(safe.figures.snapshot()).encode()]
    until = time.monotonic() + LONGEST_SECONDS
    while SLOW.exists() and not has_met_another() and time.monotonic() < until:
        time.sleep(0.01)
    start_response("201 Created", [("content-type", "application/json")])
    return [b"{}"]


def has_met_another() -> bool:
    """A second request was refused, or has come and waits."""
    return count("busy") > 0 or (BUSY == "wait" and count("present") > 1)


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 100


class Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    BUSY = sys.argv[2] if len(sys.argv) > 2 else "conflict"
    policy = Policy(busy=BUSY, lease=60)  # type: ignore[arg-type]
    protected = IdempotencyMiddleware(application, safe=safe, scope=lambda view: "acme", policy=policy)
    with make_server("127.0.0.1", int(sys.argv[1]), protected, Server, Handler) as server:
        print("serving", flush=True)
        server.serve_forever()
