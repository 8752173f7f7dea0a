"""The tiny application of the web part, bare or behind our middleware, in a process of its own.

    python -m benchmarks.webapp PORT [STORE_URL]

It does what a handler does at least: reads its body, waits once for something small, answers JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

ANSWER = json.dumps({"id": "pay_4127", "status": "succeeded", "amount": 10000, "note": "x" * 140}).encode()
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
WAIT = 0.0005


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    await asyncio.sleep(WAIT)
    await send({"type": "http.response.start", "status": 201, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


def protected(url: str) -> Any:
    from retrysafe import Policy, RetrySafe
    from retrysafe.web.asgi import IdempotencyMiddleware

    safe = RetrySafe(url)
    safe.migrate()
    policy = Policy(mode="optional")  # so that requests without a key get through to be measured
    return IdempotencyMiddleware(app, safe=safe, scope=lambda request: "account-7", policy=policy)


def main() -> None:
    import uvicorn

    port, *url = sys.argv[1:]
    served = protected(url[0]) if url else app
    uvicorn.run(
        served,
        host="127.0.0.1",
        port=int(port),
        log_level="error",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=3600,
    )


if __name__ == "__main__":
    main()
