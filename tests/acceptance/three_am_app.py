"""An application for test_three_am.py: a guarded route and an outbox, called from the command line.

python three_am_app.py KEY SCOPE     one request; with THREE_AM_DIE=1 the process is killed in the handler
"""

from __future__ import annotations

import json
import os
import signal
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from retrysafe import Policy, RetrySafe
from retrysafe.core.jobs import Job
from retrysafe.web.wsgi import IdempotencyMiddleware

safe = RetrySafe(os.environ["THREE_AM_URL"])
ledger = Path(os.environ["THREE_AM_LEDGER"])
"""What the payment provider has: one line per charge."""


@safe.publish("receipts")
def deliver(job: Job) -> None:
    with ledger.open("a") as file:
        file.write(f"receipt {job.json()['order']}\n")


def handler(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    with ledger.open("a") as file:
        file.write("charge\n")
    if os.environ.get("THREE_AM_DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    start_response("201 Created", [("content-type", "application/json")])
    return [b'{"charge": "new"}']


def request(key: str, scope: str) -> dict[str, Any]:
    """One POST through the middleware, as a server would call it."""
    app = IdempotencyMiddleware(handler, safe=safe, scope=lambda view: scope, policy=Policy(lease=1.0))
    told: dict[str, Any] = {}

    def start_response(status: str, headers: list[tuple[str, str]], exc: Any = None) -> Any:
        told["status"] = int(status.split()[0])
        told["replayed"] = {name.lower(): value for name, value in headers}.get("idempotent-replayed")
        return lambda data: None

    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/pay",
        "QUERY_STRING": "",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": "2",
        "SERVER_NAME": "shop",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.url_scheme": "http",
        "wsgi.input": BytesIO(b"{}"),
        "wsgi.errors": sys.stderr,
        "HTTP_IDEMPOTENCY_KEY": f'"{key}"',
    }
    told["body"] = b"".join(app(environ, start_response)).decode()
    return told


if __name__ == "__main__":
    print(json.dumps(request(sys.argv[1], sys.argv[2])))
    safe.close()
