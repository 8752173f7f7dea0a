"""A receiver as a Django view: `path("webhooks/stripe", endpoint(receiver))`.

The view is exempt from CSRF protection, because the signature authenticates the sender. It is exempt from
ATOMIC_REQUESTS too: the event is claimed in a commit of its own before the handler runs, and the transaction of a
handler that asks for `tx` must be the outermost one.
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
        refusal, body = _read_body(request, receiver)
        return _to_http_response(refusal or receiver.receive(request.headers, body))

    return _exempt_view(webhook)


def async_endpoint(receiver: Receiver) -> Callable[[HttpRequest], Awaitable[HttpResponse]]:
    """`endpoint` as an async view, for async handlers under ASGI."""

    async def webhook(request: HttpRequest) -> HttpResponse:
        refusal, body = _read_body(request, receiver)
        return _to_http_response(refusal or await receiver.areceive(request.headers, body))

    return _exempt_view(webhook)


def _exempt_view(view: F) -> F:
    # Django's decorator sets the same attribute, but before 5.0 it broke async views.
    view.csrf_exempt = True  # type: ignore[attr-defined]
    exempt: F = transaction.non_atomic_requests(view)
    return exempt


def _read_body(request: HttpRequest, receiver: Receiver) -> tuple[Response | None, bytes]:
    """The raw body, or the response that refuses it. Django's DATA_UPLOAD_MAX_MEMORY_SIZE counts too."""
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


def _to_http_response(response: Response) -> HttpResponse:
    http_response = HttpResponse(response.body, status=response.status)
    del http_response.headers["Content-Type"]
    for name, value in response.headers:
        http_response.headers[name] = value
    return http_response
