"""A receiver as a WSGI application."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from retrysafe.web.capture import Response
from retrysafe.web.exchange import BodyRefused
from retrysafe.web.view import of_environ
from retrysafe.web.wsgi_answer import Environ, StartResponse, transmit
from retrysafe.web.wsgi_body import Body
from retrysafe.webhooks import replies
from retrysafe.webhooks.asgi import BODY_WITHIN
from retrysafe.webhooks.receiver import Receiver


def endpoint(receiver: Receiver) -> Callable[[Environ, StartResponse], Iterable[bytes]]:
    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return transmit(start_response, answer(receiver, environ))

    return application


def answer(receiver: Receiver, environ: dict[str, Any]) -> Response:
    if environ["REQUEST_METHOD"] != "POST":
        return replies.wrong_method()
    limit = receiver.policy.max_body
    try:
        body = b"".join(Body(environ, limit).drain(limit, BODY_WITHIN))
    except BodyRefused as refused:
        return replies.refused(refused.problem)
    return receiver.receive(of_environ(environ).headers, body)
