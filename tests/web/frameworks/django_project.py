"""A Django project in the test process. Its records are in its own database.

Django is set up once for a process. Other tests that need a database of Django's own add an alias to this one
(tests/transactions/django_databases.py).
"""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import django
from django.conf import settings

FOLDER = Path(tempfile.mkdtemp(prefix="retrysafe-django-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)

OURS = "retrysafe.web.django.IdempotencyMiddleware"
REST = [
    "django.middleware.gzip.GZipMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["testserver"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "project.db"}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "django.contrib.sessions",
            "rest_framework",
            "retrysafe.web.django",
        ],
        LOGGING_CONFIG=None,
        MIDDLEWARE=[OURS, *REST],
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="for tests",
        USE_TZ=True,
    )
    django.setup()

from django.contrib.auth.decorators import login_required  # noqa: E402  (the settings come first)
from django.contrib.auth.models import User  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse  # noqa: E402
from django.urls import path  # noqa: E402

from retrysafe import Answer, Policy  # noqa: E402
from retrysafe.web.django import idempotent  # noqa: E402

RAN: list[str] = []
"""What ran, by the request's X-Tag."""
SEEN: list[bool] = []
"""True for each claim that was made inside a transaction of Django."""
PDF = b"%PDF-1.7\n" + random.Random(2).randbytes(2000) + bytes(2000)


def ran(request: Any) -> None:
    RAN.append(request.headers["X-Tag"])


def fresh() -> str:
    return uuid4().hex


def account(request: Any) -> Any:
    SEEN.append(connection.in_atomic_block)
    return request.user.pk


def refusing(view: Any) -> Any:
    """As in an API: a status instead of a redirect to a login page."""

    def checked(request: Any, **kwargs: Any) -> Any:
        if not request.user.is_authenticated:
            return JsonResponse({"error": "who are you?"}, status=401)
        return view(request, **kwargs)

    checked.__dict__.update(view.__dict__)
    return checked


@idempotent
def pay(request: Any) -> HttpResponse:
    ran(request)
    request.session["seen"] = fresh()
    return JsonResponse({"id": fresh(), "user": request.user.pk, "key": str(request.idempotency_key)}, status=201)


@idempotent
def pdf(request: Any) -> HttpResponse:
    ran(request)
    return HttpResponse(PDF, content_type="application/pdf")


@idempotent
def nothing(request: Any) -> HttpResponse:
    ran(request)
    return HttpResponse(status=204)


@idempotent
def form(request: Any) -> HttpResponse:
    ran(request)
    return JsonResponse({"amount": request.POST["amount"], "file": request.FILES["file"].read().decode(), "n": fresh()})


@idempotent
def stream(request: Any) -> StreamingHttpResponse:
    ran(request)
    return StreamingHttpResponse((f"{fresh()}\n" for _ in range(50)), content_type="text/csv")


@idempotent
async def astream(request: Any) -> StreamingHttpResponse:
    ran(request)

    async def pieces() -> AsyncIterator[str]:
        for _ in range(50):
            yield f"{fresh()}\n"

    return StreamingHttpResponse(pieces(), content_type="text/csv")


@idempotent
def events(request: Any) -> StreamingHttpResponse:
    ran(request)
    return StreamingHttpResponse((f"data: {n}\n\n" for n in range(3)), content_type="text/event-stream")


@idempotent
async def aevents(request: Any) -> StreamingHttpResponse:
    ran(request)

    async def pieces() -> AsyncIterator[str]:
        for n in range(3):
            yield f"data: {n}\n\n"

    return StreamingHttpResponse(pieces(), content_type="text/event-stream")


@idempotent(policy=Policy(max_answer=10))
def large(request: Any) -> StreamingHttpResponse:
    ran(request)
    return StreamingHttpResponse((b"0123456789" for _ in range(10)), content_type="text/plain")


@idempotent(policy=Policy(max_answer=10))
async def alarge(request: Any) -> StreamingHttpResponse:
    ran(request)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"0123456789"

    return StreamingHttpResponse(pieces(), content_type="text/plain")


@idempotent
def broken(request: Any) -> StreamingHttpResponse:
    ran(request)

    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    return StreamingHttpResponse(pieces())


@idempotent
def boom(request: Any) -> HttpResponse:
    ran(request)
    raise ZeroDivisionError("secret detail")


@idempotent
async def aboom(request: Any) -> HttpResponse:
    ran(request)
    raise ZeroDivisionError("secret detail")


@idempotent(policy=Policy(failures="release"))
def flaky(request: Any) -> HttpResponse:
    ran(request)
    raise ZeroDivisionError


@idempotent(scope=account)
def write(request: Any) -> HttpResponse:
    """Writes in the request's transaction, and then fails if asked to."""
    ran(request)
    User.objects.create(username=request.headers["X-Tag"])
    if request.body == b"fail":
        raise ZeroDivisionError
    return JsonResponse({"atomic": connection.in_atomic_block}, status=201)


@idempotent(scope=account)
@transaction.non_atomic_requests
def write_alone(request: Any) -> HttpResponse:
    ran(request)
    return JsonResponse({"atomic": connection.in_atomic_block}, status=201)


@idempotent
async def apay(request: Any) -> HttpResponse:
    ran(request)
    return JsonResponse({"id": fresh(), "key": str(request.idempotency_key)}, status=201)


@idempotent(strength="operation")
def operate(request: Any) -> Any:
    ran(request)
    return Answer(201, request.idempotency_key.value.encode(), [("content-type", "text/plain")])


def unprotected(request: Any) -> HttpResponse:
    ran(request)
    return StreamingHttpResponse(iter([b"a", b"b"]))


def early(view: Any) -> Any:
    """Middleware that reads the body before the claim, as a signature check does."""

    def reading(request: Any) -> Any:
        assert request.body
        return view(request)

    return reading


def plain_middleware(get_response: Any) -> Any:
    """Middleware in the style from before Django supported async."""

    def middleware(request: Any) -> Any:
        return get_response(request)

    return middleware


VIEWS = {
    "pay": pay, "pdf": pdf, "nothing": nothing, "form": form, "stream": stream, "events": events, "large": large,
    "broken": broken, "boom": boom, "flaky": flaky, "write": write, "write-alone": write_alone, "operate": operate,
    "early": early(pay), "unprotected": unprotected,
}  # fmt: skip
LOOPED = {"apay": apay, "astream": astream, "aevents": aevents, "alarge": alarge, "aboom": aboom}

urlpatterns = [
    path("login/pay", login_required(pay)),
    *(path(name, refusing(view)) for name, view in VIEWS.items()),
    *(path(name, view) for name, view in LOOPED.items()),
]
