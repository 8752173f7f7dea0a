"""Django: settings, a middleware that captures, a decorator and a DRF mixin that claim, checks, and migrations.

    INSTALLED_APPS = [..., "retrysafe.web.django"]
    MIDDLEWARE = ["retrysafe.web.django.IdempotencyMiddleware", ...]      # first: it sees what really goes out

    @login_required
    @idempotent(scope=lambda request: request.user.account_id)
    def create_payment(request): ...

The claim is made by the view, under whatever authenticates: a replay never answers somebody who could not have made
the request. Records live in the project's own default database unless `RETRYSAFE` says otherwise (conf.py).

conf.py        the setting RETRYSAFE         middleware.py  captures, both colours
addresses.py   DATABASES as stores' URLs     schema.py      what a migration does
carry.py       requests and answers across   decorators.py  @idempotent
bridge.py      claims across the colours     drf.py         IdempotentMixin
atomic.py      ATOMIC_REQUESTS               checks.py      manage.py check
asgi.py        get_asgi_application          migrations/    our tables in the project's database
"""

from retrysafe.web.django.decorators import idempotent
from retrysafe.web.django.middleware import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware", "idempotent"]
