"""Django: a setting, a middleware that captures, a decorator and a DRF mixin that claim, checks, and migrations.

    INSTALLED_APPS = [..., "retrysafe.web.django"]
    MIDDLEWARE = ["retrysafe.web.django.IdempotencyMiddleware", ...]      # first: it sees what is really sent

    @login_required
    @idempotent(scope=lambda request: request.user.account_id)
    def create_payment(request): ...

The view claims the key, after authentication: only a client that may make the request gets a replay. The records are in
the project's default database unless the setting `RETRYSAFE` says otherwise (conf.py).

conf.py        the setting RETRYSAFE, DATABASES as store URLs    middleware.py  captures answers, sync and async
convert.py     requests and answers to and from ours             decorators.py  @idempotent
bridge.py      claims between sync and async code                drf.py         IdempotentMixin
atomic.py      ATOMIC_REQUESTS                                   checks.py      manage.py check
asgi.py        get_asgi_application                              schema.py      what a migration does
apps.py        the Django application                            migrations/    our tables in the project's database
"""

from retrysafe.web.django.decorators import idempotent
from retrysafe.web.django.middleware import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware", "idempotent"]
