"""A receiver as a view of Django: `path("webhooks/stripe", endpoint(receiver))`.

Exempt from CSRF, since the signature is the proof, and from ATOMIC_REQUESTS: the event is claimed in a commit of its
own before the handler runs, and a handler that asks for `tx` must have the outermost transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from django.core.exceptions import RequestDataTooBig  # type: ignore[import-untyped]  # Django ships no types
from django.db import transaction  # type: ignore[import-untyped]
from django.http import HttpRequest, HttpResponse  # type: ignore[import-untyped]
from django.http.request import UnreadablePostError  # type: ignore[import-untyped]

from retrysafe.web import problems
from retrysafe.web.capture import Response
from retrysafe.webhooks import replies
from retrysafe.webhooks.receiver import Receiver

F = TypeVar("F", bound=Callable[..., Any])


def endpoint(receiver: Receiver) -> Callable[[HttpRequest], HttpResponse]:
    def webhook(request: HttpRequest) -> HttpResponse:
        early, body = _read_body(request, receiver)
        return _to_http_response(early or receiver.receive(request.headers, body))

    return _exempt_view(webhook)


def async_endpoint(receiver: Receiver) -> Callable[[HttpRequest], Awaitable[HttpResponse]]:
    """The same as an async view, for async handlers under ASGI."""

    async def webhook(request: HttpRequest) -> HttpResponse:
        early, body = _read_body(request, receiver)
        return _to_http_response(early or await receiver.areceive(request.headers, body))

    return _exempt_view(webhook)


def _exempt_view(view: F) -> F:
    view.csrf_exempt = True  # type: ignore[attr-defined]  # what Django's decorator does; before 5.0 that broke async views
    made: F = transaction.non_atomic_requests(view)
    return made


def _read_body(request: HttpRequest, receiver: Receiver) -> tuple[Response | None, bytes]:
    """The raw body, or what to say instead. Django's DATA_UPLOAD_MAX_MEMORY_SIZE counts too."""
    if request.method != "POST":
        return replies.wrong_method_response(), b""
    try:
        body = request.body
    except RequestDataTooBig:
        return replies.refused_body_response(problems.TOO_LARGE), b""
    except UnreadablePostError:
        return replies.refused_body_response(problems.UNREADABLE), b""
    if len(body) > receiver.policy.max_body:
        return replies.refused_body_response(problems.TOO_LARGE), b""
    return None, body


def _to_http_response(told: Response) -> HttpResponse:
    answer = HttpResponse(told.body, status=told.status)
    del answer.headers["Content-Type"]
    for name, value in told.headers:
        answer.headers[name] = value
    return answer
