"""A request to the console and its answer, without any framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlencode

from retrysafe.errors import UsageError

MAX_BODY_BYTES = 512 * 1024
"""Enough for a bulk action on 1,000 records, or an answer of this size. Longer bodies are refused with 413."""

MAX_FIELDS = 2_000


class ConsoleRequest(NamedTuple):
    """What a shell passes on. Header names are in lower case."""

    method: str
    path: str
    """Below the place where the console is mounted; begins with a slash."""
    query: str = ""
    headers: Mapping[str, str] = {}  # never changed
    body: bytes = b""
    mount: str = ""
    """Where the console is mounted, without a slash at the end."""
    raw: Any = None
    """The request of the server: an ASGI scope, a WSGI environ or a Django request. For `authenticate`."""

    @property
    def params(self) -> dict[str, list[str]]:
        return parse_fields(self.query)

    def param(self, name: str, default: str = "") -> str:
        """The first value of a parameter of the address."""
        return self.params.get(name, [default])[0]

    @property
    def form(self) -> dict[str, list[str]]:
        """The fields of a form that was sent."""
        return parse_fields(self.body.decode("utf-8", "replace"))

    def field(self, name: str, default: str = "") -> str:
        return self.form.get(name, [default])[0]

    @property
    def cookies(self) -> dict[str, str]:
        return parse_cookies(self.headers.get("cookie", ""))

    @property
    def is_fragment(self) -> bool:
        """Whether htmx asks for the inner part of a page only."""
        return self.headers.get("hx-request") == "true" and self.method == "GET"

    def url(self, path: str, **params: Any) -> str:
        """An address of the console. Empty parameters are left out."""
        given = {name: value for name, value in params.items() if value not in ("", None, False)}
        return f"{quote(self.mount)}{path}" + (f"?{urlencode(given)}" if given else "")


class ConsoleResponse(NamedTuple):
    """An answer: status, body, headers in order."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()

    def header(self, name: str) -> str:
        """The first header of this name; empty if there is none."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")

    def with_headers(self, headers: Iterable[tuple[str, str]]) -> ConsoleResponse:
        return self._replace(headers=(*self.headers, *headers))


def parse_fields(text: str) -> dict[str, list[str]]:
    """The fields of an address or a form. Raises UsageError if there are too many."""
    try:
        return parse_qs(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise UsageError(f"there are more than {MAX_FIELDS:,} fields; send fewer") from None


def parse_cookies(header: str) -> dict[str, str]:
    """Cookies by name; the first of a name counts, whose path is the longest. Not http.cookies: it gives up at a cookie
    of the application that it does not understand, such as one of JSON, and ours would be lost with it."""
    found: dict[str, str] = {}
    for part in header.split(";"):
        name, _, value = part.partition("=")
        found.setdefault(name.strip(), value.strip().removeprefix('"').removesuffix('"'))
    return found


def redirect(url: str) -> ConsoleResponse:
    """See another page, with GET."""
    return ConsoleResponse(303, b"", (("location", url), ("cache-control", "no-store")))
