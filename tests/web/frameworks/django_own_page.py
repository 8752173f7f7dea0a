"""The URLs of the project beside this, with an error page of its own."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponseServerError

from tests.web.frameworks.django_project import fresh, urlpatterns

handler500 = "tests.web.frameworks.django_own_page.sorry"


def sorry(request: Any) -> HttpResponseServerError:
    return HttpResponseServerError(f"sorry {fresh()}")


__all__ = ["handler500", "urlpatterns"]
