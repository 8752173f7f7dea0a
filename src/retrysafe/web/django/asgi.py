"""`asgi.py` of a project: Django with our ASGI middleware around it.

    from retrysafe.web.django.asgi import get_asgi_application
    application = get_asgi_application()

The middleware in MIDDLEWARE is enough for WSGI. Under ASGI, Django cancels a request whose client has left; from inside
we can then only finish within `RETRYSAFE["GRACE"]` seconds. From outside, Django does not hear of it while the work of
a key runs. Use both: the inner one then only reports failures.
"""

from __future__ import annotations

from django.core.asgi import get_asgi_application as of_django  # type: ignore[import-untyped]  # no types

from retrysafe.web.asgi import ASGIApp, ASGIScope, IdempotencyMiddleware, Receive
from retrysafe.web.asgi_answer import Message, Send
from retrysafe.web.django import conf
from retrysafe.web.response_ready import ResponseReady


def get_asgi_application() -> IdempotencyMiddleware:
    inner = of_django()  # sets Django up, so before the settings are read
    return IdempotencyMiddleware(_ignore_undelivered_answer(inner), safe=conf.safe(), **conf.options())


def _ignore_undelivered_answer(inner: ASGIApp) -> ASGIApp:
    """Django with a `send` that does not raise at the end of an answer which nobody gets. Nothing of Django's waits for
    its answer to be out, and it would leave open what it has opened for the request."""

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            try:
                await send(message)
            except ResponseReady:
                if message.get("more_body", False):
                    raise

        await inner(scope, receive, sent)

    return app
