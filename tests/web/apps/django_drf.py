"""The reference application in Django REST framework."""

from __future__ import annotations

import os

os.environ["REFERENCE_DJANGO"] = "drf"

from tests.web.apps.django_app import wsgi

__all__ = ["wsgi"]
