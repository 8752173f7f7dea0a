"""`uvicorn examples.django_payments.asgi:application`"""

from __future__ import annotations

import os

# Ours instead of Django's: a client that leaves does not stop the work of a key.
from retrysafe.web.django.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_payments.settings")
application = get_asgi_application()
