"""The same work without a framework: `python -m benchmarks.apps.asgi_app KIND PORT URL`.

The harsher table. Its bare form costs next to nothing (no routing, no parsing, a ready-made answer), so whatever a
middleware does weighs several times what it weighs in front of anything real.
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
    return IdempotencyMiddleware(app, safe=safe, scope=lambda request: request.headers["authorization"], policy=policy)


def main() -> None:
    import uvicorn

    kind, port, url = sys.argv[1:]
    uvicorn.run(
        app if kind == "bare" else protected(url),
        host="127.0.0.1",
        port=int(port),
        log_level="error",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=3600,
    )


if __name__ == "__main__":
    main()
