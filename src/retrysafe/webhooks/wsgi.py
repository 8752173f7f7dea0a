"""A receiver as a WSGI application (one file per protocol, imported by its name): mount `endpoint(receiver)` at a
path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from retrysafe.web.capture import Response
from retrysafe.web.exchange import BodyRefused
from retrysafe.web.view import view_from_environ
from retrysafe.web.wsgi_answer import Environ, StartResponse, transmit
from retrysafe.web.wsgi_body import WsgiBody
from retrysafe.webhooks import replies
from retrysafe.webhooks.asgi import BODY_TIMEOUT_SECONDS
from retrysafe.webhooks.receiver import Receiver


def endpoint(receiver: Receiver) -> Callable[[Environ, StartResponse], Iterable[bytes]]:
    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return transmit(start_response, receive_request(receiver, environ))

    return application


def receive_request(receiver: Receiver, environ: dict[str, Any]) -> Response:
    """Read the request's body and hand the delivery to the receiver. Flask's adapter uses it too."""
    if environ["REQUEST_METHOD"] != "POST":
        return replies.wrong_method_response()
    limit = receiver.policy.max_body
    try:
        body = b"".join(WsgiBody(environ, limit).read_all(limit, BODY_TIMEOUT_SECONDS))
    except BodyRefused as refused:
        return replies.refused_body_response(refused.problem)
    return receiver.receive(view_from_environ(environ).headers, body)
