"""`asgi.py` of a project: Django with our ASGI middleware around it.

    from retrysafe.web.django.asgi import get_asgi_application
    application = get_asgi_application()

The middleware in MIDDLEWARE is enough for WSGI. Under ASGI, Django cancels a request whose client has left; from inside
we can then only finish within `RETRYSAFE["GRACE"]` seconds. From outside, Django does not hear of it while the work of
a key runs. Use both: the inner one then only reports failures.
"""

from __future__ import annotations

from django.core.asgi import get_asgi_application as of_django  # type: ignore[import-untyped]  # no types

from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.django import conf


def get_asgi_application() -> IdempotencyMiddleware:
    inner = of_django()  # sets Django up, so before the settings are read
    return IdempotencyMiddleware(inner, safe=conf.safe(), **conf.options())
