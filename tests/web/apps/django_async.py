"""The reference application in Django with async views."""

from __future__ import annotations

import os

os.environ["REFERENCE_DJANGO"] = "async"

from tests.web.apps.django_app import asgi, asgi_inner

__all__ = ["asgi", "asgi_inner"]
