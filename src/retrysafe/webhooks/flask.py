"""A receiver as a view of Flask: `app.post("/webhooks/stripe")(endpoint(receiver))`.

Nothing may read `request.form` before: the signature is over the raw body. `request.get_data()` does no harm.
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
        told = _receive(receiver)
        answer = Response(told.body, told.status)
        answer.headers.clear()
        answer.headers.extend(list(told.headers))
        return answer

    webhook.__name__ = f"webhook_{receiver.provider}"  # Flask tells views apart by their names
    return webhook


def _receive(receiver: Receiver) -> Captured:
    if request.content_length is None:
        return wsgi.receive_request(receiver, dict(request.environ))  # a body without a length is read up to the limit
    if request.content_length > receiver.policy.max_body:
        return replies.refused_body_response(problems.TOO_LARGE)
    return receiver.receive(request.headers, request.get_data())
