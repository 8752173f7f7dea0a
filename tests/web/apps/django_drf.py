"""The reference application in Django REST framework."""

from __future__ import annotations

import os

os.environ["REFERENCE_DJANGO"] = "drf"

from tests.web.apps.django_app import wsgi  # noqa: E402  (the views are chosen by then)

__all__ = ["wsgi"]
