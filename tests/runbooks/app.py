"""The application that the runbooks are tried on. It lives in the folder of RETRYSAFE_URL's SQLite file; a file named
`down` there means that the other system is down, one named `killed` that a charge kills the process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.core.jobs import Job
from retrysafe.operations import Undo
from retrysafe.web.wsgi import IdempotencyMiddleware
from tests.web.unit.harness import WsgiCall

URL = os.environ["RETRYSAFE_URL"]
DOWN = Path(URL.removeprefix("sqlite:///")).parent / "down"
KILLED = DOWN.with_name("killed")

safe = RetrySafe(URL, namespace="default")


def application(environ: Any, start_response: Any) -> list[bytes]:
    """The process dies in the request while the bank is down."""
    if DOWN.exists():
        os._exit(9)
    start_response("201 Created", [])
    return [b"{}"]


protected = IdempotencyMiddleware(application, safe=safe, scope=lambda view: "acme", policy=Policy(lease=1))


def pay(key: str) -> tuple[int, bytes]:
    """What a client gets."""
    call = WsgiCall(protected, body=b"{}", key=key)
    return call.status, call.body


trip = safe.operation("trip", policy=Policy(lease=5))


def refund(result: str | None, *, key: str) -> None:
    if DOWN.exists():
        raise ConnectionError("the bank is down")


@trip.foreign(undo=refund, backoff=(0.001,))
def charge(cents: int, *, key: str) -> str:
    if KILLED.exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return "ch_1"


@trip.body
def book(cents: int) -> Answer:
    charge(cents)
    if cents > 100:
        raise Undo(402, {"error": "no funds"})
    return Answer(201, {"charged": cents})


@safe.publish("mail")
def send_mail(job: Job) -> None:
    if DOWN.exists():
        raise ConnectionError("the mail server is down")
