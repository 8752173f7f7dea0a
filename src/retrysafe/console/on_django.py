"""The console in a Django project, as part of its addresses:

    console = Console(safe, authenticate=find_staff)
    urlpatterns = [path("retrysafe/", include(build_urls(console)))]

on_django_admin.py puts it into the admin site instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import RequestDataTooBig  # type: ignore[import-untyped]  # Django ships no types
from django.http import HttpRequest, HttpResponse  # type: ignore[import-untyped]
from django.urls import path, re_path  # type: ignore[import-untyped]
from django.views.decorators.csrf import csrf_exempt  # type: ignore[import-untyped]

from retrysafe.console.access import Operator
from retrysafe.console.console import Console
from retrysafe.console.headers import CUT_SHORT, TOO_LARGE, find_bad_length
from retrysafe.console.messages import MAX_BODY_BYTES, ConsoleRequest, ConsoleResponse

DjangoView = Callable[..., HttpResponse]


def find_staff(request: ConsoleRequest) -> Operator | None:
    """The user of the Django session, if it is staff. `authorize` finds the user in `operator.user`."""
    user = getattr(request.raw, "user", None)
    if user is None or not (user.is_authenticated and user.is_active and user.is_staff):
        return None
    return Operator(user.get_username(), user)


def build_urls(console: Console) -> list[Any]:
    """Patterns for `include`."""
    view = make_view(lambda: console)
    return [path("", view), re_path(r"^(?P<rest>.+)$", view)]


def make_view(get_console: Callable[[], Console]) -> DjangoView:
    """A view that passes everything below its own address to the console. The console has its own check against forms
    of other sites, because its forms must also work outside Django."""

    @csrf_exempt  # type: ignore[untyped-decorator]
    def answer(request: HttpRequest, rest: str = "") -> HttpResponse:
        refusal = find_bad_body(request)
        return to_django(refusal or get_console().handle(from_django(request, rest)))

    return answer  # type: ignore[no-any-return]


def find_bad_body(request: HttpRequest) -> ConsoleResponse | None:
    """The refusal of a body that is too large, or shorter than its length says."""
    declared = str(request.META.get("CONTENT_LENGTH") or "")
    refusal = find_bad_length(declared)
    if refusal is not None:
        return refusal
    try:
        length = len(request.body)
    except RequestDataTooBig:  # DATA_UPLOAD_MAX_MEMORY_SIZE
        return TOO_LARGE
    except Exception:  # in pieces that end early, or are none; each server has its own errors for that
        return CUT_SHORT
    if length > MAX_BODY_BYTES:
        return TOO_LARGE
    return CUT_SHORT if declared and length != int(declared) else None


def from_django(request: HttpRequest, rest: str) -> ConsoleRequest:
    mount = request.path[: len(request.path) - len(rest)].rstrip("/")
    headers = {name.lower(): value for name, value in request.headers.items()}
    headers["host"] = request.get_host()  # as Django trusts it: ALLOWED_HOSTS, USE_X_FORWARDED_HOST
    query = request.META.get("QUERY_STRING", "")
    return ConsoleRequest(request.method, f"/{rest}", query, headers, request.body, mount, request)


def to_django(response: ConsoleResponse) -> HttpResponse:
    made = HttpResponse(response.body, status=response.status)
    del made["Content-Type"]
    for name, value in response.headers:
        if name == "set-cookie":
            made.cookies.load(value)
        else:
            made[name] = value
    return made
