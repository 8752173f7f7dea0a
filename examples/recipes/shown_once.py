"""Keep the state, drop the body: an API key that is shown once and stored nowhere.

With `max_answer=0` the guard remembers that the request was done, and not what was answered. A retry is told so (410)
and makes no second key. Where the answer is needed for a while, and not for ever, drop it later: see `drop_body` in
which_key.py.
"""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import FastAPI, Header

from retrysafe import Key, Policy, RetrySafe
from retrysafe.web.fastapi import idempotent, install


def current_account(x_account: Annotated[str, Header()]) -> str:
    """Stands for your authentication."""
    return x_account


def application(safe: RetrySafe, issued: list[str]) -> FastAPI:
    app = FastAPI()
    install(app, safe=safe)

    @app.post("/tokens", status_code=201)
    @idempotent(scope=current_account, policy=Policy(max_answer=0))
    async def tokens(key: Key) -> dict[str, str]:
        issued.append(secrets.token_urlsafe(24))  # stands for the hash you would store
        return {"token": issued[-1]}

    return app
