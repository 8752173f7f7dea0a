"""What scenarios share: an actor in an application's process, a request to an ASGI application, and how an operation's
errors become replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from retrysafe.core.keys import Key
from retrysafe.errors import (
    AnswerGone,
    FingerprintMismatch,
    InProgress,
    NotNow,
    OperationChanged,
    OutcomeUnknown,
    RetrySafeError,
    StoredFailure,
)
from retrysafe.testing.simulation import AppHost, ClientReply, Purchase

SCOPE = "account"


def start_actor(work: Coroutine[Any, Any, None]) -> None:
    """Run something beside the handler, for as long as the process lives."""
    asyncio.get_running_loop().create_task(work, name="actor")


def is_first_process() -> bool:
    """Whether this process runs since the beginning: what starts later, after a crash, is the next deployment."""
    return asyncio.get_running_loop().time() < 0.001


def report(node: AppHost, rule: str, why: str) -> None:
    """Say that a rule was seen broken (`checkers.py: check_reports`)."""
    history = node.provider.history
    history.note(node.provider.now, node.host.name, "broken", rule=rule, why=why)


class Response(NamedTuple):
    """What an ASGI application answered."""

    status: int
    body: bytes
    headers: dict[str, str]


async def send_request(
    app: Any, path: str, key: str, *, method: str = "POST", body: bytes = b"{}", account: str = SCOPE
) -> Response:
    """One request to an ASGI application. `account` is who sends it, for the middleware's `scope`."""
    headers = [
        (b"idempotency-key", key.encode()),
        (b"content-type", b"application/json"),
        (b"account", account.encode()),
    ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path.replace("%2F", "/"),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    status, parts, got = 0, [], {}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            got.update({name.decode().lower(): value.decode() for name, value in message["headers"]})
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return Response(status, b"".join(parts), got)


async def answer(send: Any, status: int, body: bytes = b"", *headers: tuple[bytes, bytes]) -> None:
    """Answer an ASGI request."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/json"), *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})


def to_reply(response: Response) -> ClientReply:
    unknown = response.status == 500 and b"unknown" in response.body
    return ClientReply(response.status, b"unknown" if unknown else response.body)


async def reply_to(call: Awaitable[Any]) -> ClientReply:
    """What a client is told by an operation or a guarded function."""
    try:
        done = await call
    except (InProgress, NotNow):
        return ClientReply(409, b"")
    except FingerprintMismatch:
        return ClientReply(422, b"mismatch")
    except OperationChanged:
        return ClientReply(503, b"OperationChanged")
    except OutcomeUnknown:
        return ClientReply(500, b"unknown")
    except StoredFailure:
        return ClientReply(500, b"failed", stored=True)
    except AnswerGone:
        return ClientReply(410, b"")
    except (RetrySafeError, TimeoutError, ConnectionError) as error:
        return ClientReply(503, type(error).__name__.encode())
    if isinstance(done, ClientReply):
        return done
    if isinstance(done, int):
        return ClientReply(201, b'{"charge": %d}' % done)
    # A client of ours sends again after 409 and 5xx, also where it is the stored answer: of what was undone.
    return ClientReply(402 if done.status == 409 or done.status >= 500 else done.status, done.body)


def run_operations(operations: dict[str, Any]) -> Callable[[Purchase], Awaitable[ClientReply]]:
    """A handler that runs the operation of each purchase's kind."""

    async def handle(purchase: Purchase) -> ClientReply:
        return await reply_to(operations[purchase.kind](purchase.name, key=Key(purchase.key, SCOPE)))

    return handle
