"""The reference application in Flask. `python -m tests.web.apps.flask_app PORT` is Flask's own development server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from flask import Flask, Response, g, request
from werkzeug.serving import WSGIRequestHandler

from retrysafe.web.flask import Idempotency
from tests.web.apps import reference

app = Flask(__name__)
idempotency = Idempotency(
    app,
    safe=reference.make_safe(),
    scope=lambda: g.account,
    policy=reference.DEFAULT,
    status_scope=reference.known_account,
)


def authenticated(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            g.account = reference.authenticate(request.headers.get("Authorization"))
        except reference.Refused as refusal:
            return {"error": "refused"}, refusal.status
        return view(*args, **kwargs)

    return checked


def view(**_: str) -> Response:
    query, tag = request.query_string.decode(), request.headers.get("X-Tag", "-")
    reply = reference.handle(request.method, request.path, query, tag, g.account, request.get_data())
    body: Any = iter(reply.chunks) if reply.streamed else reply.body
    response = Response(body, reply.status, list(reply.headers))
    if not any(name == "Content-Type" for name, _ in reply.headers):
        del response.headers["Content-Type"]
    return response


@app.get("/health")
def health() -> Any:
    return {"ok": True}


for name in reference.ROUTES:
    method, _, path = name.partition(" ")
    protect = idempotency.protect(policy=reference.POLICIES.get(name, reference.DEFAULT), target=name)
    app.add_url_rule(
        path.replace("{id}", "<id>"), name.replace(".", ""), authenticated(protect(view)), methods=[method]
    )


class Quiet(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log only errors."""


if __name__ == "__main__":
    app.run("127.0.0.1", int(sys.argv[1]), threaded=True, request_handler=Quiet)
