"""For a project's `asgi.py`: Django with our ASGI middleware around it.

    from retrysafe.web.django.asgi import get_asgi_application
    application = get_asgi_application()

On WSGI the middleware in MIDDLEWARE is enough. On ASGI, Django cancels a request whose client disconnected. The
middleware in MIDDLEWARE can then only let the work go on for `RETRYSAFE["GRACE"]` seconds. The ASGI middleware hides
the disconnect from Django while claimed work runs. Use both: the inner one then only reports failures.
"""

from __future__ import annotations

from django.core.asgi import get_asgi_application as get_django_application  # type: ignore[import-untyped]  # no types

from retrysafe.web.asgi import ASGIApp, ASGIScope, IdempotencyMiddleware, Receive
from retrysafe.web.asgi_answer import Message, Send
from retrysafe.web.django import conf
from retrysafe.web.exchange_context import ResponseReady


def get_asgi_application() -> IdempotencyMiddleware:
    inner = get_django_application()  # sets Django up; must come before the settings are read
    return IdempotencyMiddleware(_ignore_undelivered_answer(inner), safe=conf.safe(), **conf.options())


def _ignore_undelivered_answer(inner: ASGIApp) -> ASGIApp:
    """Django with a `send` that does not raise ResponseReady for the last message of an answer. Django runs nothing
    after its answer that must be prevented, and with an exception it would not close the request's resources."""

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        async def send_ignoring_last(message: Message) -> None:
            try:
                await send(message)
            except ResponseReady:
                if message.get("more_body", False):
                    raise

        await inner(scope, receive, send_ignoring_last)

    return app
