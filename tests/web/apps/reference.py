"""The reference application: what every framework example does, so that the same cases run against all of them.

All behaviour is here, without a framework. An example only maps its routes to `handle`, sends what comes back, and
protects itself with retrysafe the way its users would. The test calls it over HTTP, and also communicates through a
folder (`REFERENCE_DIR`), which works for any number of worker processes and after a kill:

    executions      one line `<endpoint> <tag>` for each time a handler began; the tag is the request's `X-Tag`
    tokens.json     `{"token": {"account": "a1", "allowed": true}}`, read at each request: unknown 401, not allowed 403
    go-<tag>        `/slow…` answers once this file exists

`RETRYSAFE_URL` is the store. What an example must do:

1.  Serve every route of `ROUTES`, and GET /health without authentication.
2.  Authenticate each of `ROUTES` with `authenticate(authorization header)`: a `Refused` is answered with its status,
    and retrysafe is not involved: nothing is stored or replayed. The account is the idempotency scope.
3.  Use `make_safe()` and, for each route, `POLICIES.get("POST /fail", DEFAULT)`.
4.  Call `handle(method, path, query, tag, account, body)` in the handler and send its `Reply`: the status, all headers
    (Set-Cookie comes twice), and the chunks one by one where there are several (a streaming answer). `Reply.chunks` of
    `/slow…` must be asked for only once (`handle` blocks until the file is there): an async example calls
    `await ahandle(...)`, which does not block the loop.
5.  Let `Boom` (raised for POST /fail) escape as any uncaught exception would in that framework.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrysafe import Policy, RetrySafe
from retrysafe.web.view import RequestView

ROUTES = (
    "POST /payments", "POST /echo-bytes", "POST /stream", "POST /sse", "POST /no-content", "POST /not-modified",
    "POST /gzip", "POST /fail", "POST /unavailable", "POST /declined", "POST /flaky",
    "POST /late-401", "POST /late-403", "POST /limited",
    "POST /slow", "POST /slow-lapsing", "POST /slow-rerun", "POST /slow-kept", "POST /slow-wait", "POST /slow-accepted",
    "POST /big",
    "PUT /items/{id}", "PATCH /items/{id}", "DELETE /items/{id}",
    "POST /optional", "POST /observed", "POST /generated",
)  # fmt: skip

SHORT = 1.0
"""The lease of routes whose worker is killed, in seconds: a test waits until it lapses."""
KEPT = 3.0
"""The lease of a route whose worker must renew it."""

CAP = 1 << 20
DEFAULT = Policy(max_body=CAP, max_answer=CAP)
POLICIES = {
    "POST /flaky": Policy(failures="release"),
    "POST /slow-lapsing": Policy(lease=SHORT),
    "POST /slow-rerun": Policy(lease=SHORT, abandoned="rerun"),
    "POST /slow-kept": Policy(lease=KEPT, abandoned="rerun"),
    "POST /slow-wait": Policy(busy="wait", wait=20),
    "POST /slow-accepted": Policy(busy="accepted"),
    "POST /optional": Policy(mode="optional"),
    "POST /observed": Policy(mode="observe"),
    "POST /generated": Policy(mode="generate"),
}
CANARY = "canary-4f1d-do-not-show"


class Boom(RuntimeError):
    """The handler's own failure; its text must never reach a client."""


class Refused(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"{status}")
        self.status = status


@dataclass
class Reply:
    status: int = 200
    chunks: list[bytes] = field(default_factory=lambda: [b""])
    headers: list[tuple[str, str]] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def streamed(self) -> bool:
        return len(self.chunks) > 1

    @classmethod
    def json(cls, status: int, value: Any, *headers: tuple[str, str]) -> Reply:
        body = json.dumps(value).encode()
        return cls(status, [body], [("Content-Type", "application/json; charset=utf-8"), *headers])


def make_safe() -> RetrySafe:
    safe = RetrySafe(os.environ["RETRYSAFE_URL"])
    safe.migrate()
    return safe


def folder() -> Path:
    return Path(os.environ["REFERENCE_DIR"])


def authenticate(authorization: str | None) -> str:
    tokens = json.loads((folder() / "tokens.json").read_text())
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or token not in tokens:
        raise Refused(401)
    if not tokens[token]["allowed"]:
        raise Refused(403)
    account: str = tokens[token]["account"]
    return account


def known_account(request: RequestView) -> str | None:
    """The principal of a status request; empty if it is not known."""
    try:
        return authenticate(request.headers.get("authorization"))
    except Refused:
        return None


def handle(method: str, path: str, query: str, tag: str, account: str, body: bytes) -> Reply:
    """Run the route's handler, and record that it ran."""
    for _ in steps(method, path, tag):
        time.sleep(0.01)
    return answer(method, path, query, tag, account, body)


async def ahandle(method: str, path: str, query: str, tag: str, account: str, body: bytes) -> Reply:
    for _ in steps(method, path, tag):
        await asyncio.sleep(0.01)
    return answer(method, path, query, tag, account, body)


def steps(method: str, path: str, tag: str) -> Iterator[None]:
    """Record that it began. On `/slow…`, yield each time the file `go-<tag>` is not there yet."""
    began(endpoint(method, path), tag)
    if path.startswith("/slow"):
        while not (folder() / f"go-{tag}").exists():
            yield


def began(name: str, tag: str) -> None:
    # O_APPEND and one write: lines of several processes do not mix.
    with (folder() / "executions").open("ab", buffering=0) as log:
        log.write(f"{name} {tag}\n".encode())


def executions(where: Path, tag: str) -> int:
    log = where / "executions"
    lines = log.read_text().splitlines() if log.exists() else []
    return sum(line.rpartition(" ")[2] == tag for line in lines)


def endpoint(method: str, path: str) -> str:
    return f"{method} /items/{{id}}" if path.startswith("/items/") else f"{method} {path}"


def answer(method: str, path: str, query: str, tag: str, account: str, body: bytes) -> Reply:
    nonce = secrets.token_hex(8)  # a second execution would show
    if path.startswith("/items/"):
        return Reply.json(200, {"item": path, "nonce": nonce}) if method == "PUT" else Reply(204)
    if path == "/payments":
        return payment(account, body, nonce)
    if path == "/echo-bytes":
        return Reply(200, [body], [("Content-Type", "application/octet-stream"), ("X-Nonce", nonce)])
    if path == "/stream":
        return Reply(
            200, [f"{i} {secrets.token_hex(32)}\n".encode() for i in range(100)], [("Content-Type", "text/plain")]
        )
    if path == "/sse":
        events = [f"data: {i} {nonce}\n\n".encode() for i in range(3)]
        return Reply(200, events, [("Content-Type", "text/event-stream")])
    if path == "/big":
        return big(int(query.partition("size=")[2]))
    if path == "/fail":
        raise Boom(CANARY)
    if path == "/flaky":
        return Reply.json(503 if executions(folder(), tag) == 1 else 201, {"nonce": nonce})
    if path == "/gzip":
        packed = gzip.compress(secrets.token_hex(2000).encode())
        return Reply(200, [packed], [("Content-Type", "text/plain"), ("Content-Encoding", "gzip")])
    if path in FIXED:
        return Reply(FIXED[path], [b""], [("ETag", f'"{nonce}"')] if path == "/not-modified" else [])
    status = {"/unavailable": 503, "/declined": 402, "/late-401": 401, "/late-403": 403, "/limited": 429}.get(path, 201)
    return Reply.json(status, {"path": path, "account": account, "nonce": nonce})


FIXED = {"/no-content": 204, "/not-modified": 304}


def payment(account: str, body: bytes, nonce: str) -> Reply:
    """Headers of every kind: some are stored, some are not."""
    return Reply.json(
        201,
        {"id": nonce, "account": account, "sent": len(body)},
        ("Location", f"/payments/{nonce}"),
        ("ETag", f'"{nonce}"'),
        ("X-Custom", "kept"),
        ("Link", '</a>; rel="a"'),
        ("Link", '</b>; rel="b"'),
        ("Cache-Control", "max-age=60"),
        ("Set-Cookie", "session=s1; HttpOnly"),
        ("Set-Cookie", "theme=dark"),
        ("WWW-Authenticate", "Bearer"),
        ("X-Request-Id", nonce),
        ("X-RateLimit-Remaining", "7"),
        ("traceparent", "00-00000000000000000000000000000001-0000000000000001-01"),
    )


def big(size: int) -> Reply:
    """`size` bytes that do not repeat, in pieces of 64 KiB."""
    data = random.Random(size).randbytes(size)
    step = 64 * 1024
    return Reply(
        200, [data[at : at + step] for at in range(0, size, step)], [("Content-Type", "application/octet-stream")]
    )
