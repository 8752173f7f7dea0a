"""A receiver as a Flask view (one file per framework, imported by its name):
`app.post("/webhooks/stripe")(endpoint(receiver))`.

Nothing may read `request.form` before the view runs: the signature is over the raw body. `request.get_data()` is fine.
"""

from __future__ import annotations

from collections.abc import Callable

from flask import Response, request

from retrysafe.web import problems
from retrysafe.web.capture import Response as Captured
from retrysafe.webhooks import replies, wsgi
from retrysafe.webhooks.receiver import Receiver


def endpoint(receiver: Receiver) -> Callable[[], Response]:
    def webhook() -> Response:
        captured = _receive(receiver)
        response = Response(captured.body, captured.status)
        response.headers.clear()
        response.headers.extend(list(captured.headers))
        return response

    webhook.__name__ = f"webhook_{receiver.provider}"  # Flask identifies views by their names
    return webhook


def _receive(receiver: Receiver) -> Captured:
    if request.content_length is None:
        return wsgi.receive_request(receiver, dict(request.environ))  # without a length, read at most the limit
    if request.content_length > receiver.policy.max_body:
        return replies.refused_body_response(problems.TOO_LARGE)
    return receiver.receive(request.headers, request.get_data())
