"""What Django's resolver made of a request. DRF checks a request inside its view: there an endpoint was entered."""

from __future__ import annotations

from typing import Any

from django.conf import settings as django_settings  # type: ignore[import-untyped]  # Django ships no types
from django.urls import Resolver404, get_urlconf, resolve  # type: ignore[import-untyped]

from retrysafe.web.endpoint_entry import ENTERED, REDIRECTED, REFUSED, UNKNOWN, EndpointEntry


def entry_of(request: Any, response: Any, code: int) -> EndpointEntry:
    """Refused by the resolver if it has no view for the address, and the answer is its own. Middleware that answers in
    its place may have done anything."""
    if request.resolver_match is not None:
        return ENTERED
    try:
        resolve(request.path_info, getattr(request, "urlconf", None) or get_urlconf())
    except Resolver404:
        return _entry_from_answer(request, response, code)
    return UNKNOWN


def _entry_from_answer(request: Any, response: Any, code: int) -> EndpointEntry:
    if code == 404:
        return REFUSED
    with_slash = django_settings.APPEND_SLASH and response.get("Location") == request.get_full_path(
        force_append_slash=True
    )
    return REDIRECTED if with_slash and 300 <= code < 400 else UNKNOWN
