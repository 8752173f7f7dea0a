"""A form of another site must not act here. Two checks, each of which is enough by itself:

- The browser says where a form was sent from: `Sec-Fetch-Site` must be `same-origin`; an older browser sends `Origin`,
  which must be our own host, or one of `origins` (behind a proxy that changes the host). A request with neither was not
  sent by a browser's form, and is refused: programs use the command line. (https://words.filippo.io/csrf/)
- The form repeats a random token that is also in a cookie. Another site can neither read nor set that cookie. No secret
  is shared between processes, so a second process accepts the form of the first.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

from retrysafe.console.messages import ConsoleRequest

COOKIE = "retrysafe_console_csrf"
FIELD = "csrf"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


def read_token(request: ConsoleRequest) -> str:
    """The token of this browser; empty if it has none yet."""
    found = request.cookies.get(COOKIE, "")
    return found if _TOKEN.fullmatch(found) else ""


def draw_token() -> str:
    return secrets.token_urlsafe(32)


def build_cookie(token: str, path: str, *, secure: bool) -> str:
    more = "; Secure" if secure else ""
    return f"{COOKIE}={token}; Path={path or '/'}; HttpOnly; SameSite=Strict{more}"


def find_forgery(request: ConsoleRequest, origins: Collection[str]) -> str:
    """Why this request must not act; empty if it may."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site != "same-origin":
        return f"the form was sent from another site (Sec-Fetch-Site: {site})"
    if site is None and origin is None:
        return "the request says neither Origin nor Sec-Fetch-Site; scripts use the command line instead"
    if site is None and not _is_own(origin or "", request, origins):
        return "the form was sent from another site (Origin)"
    token = read_token(request)
    if not token or not hmac.compare_digest(token.encode(), request.field(FIELD).encode()):
        return "the form has no token of this browser, or an old one; load the page again"
    return ""


def _is_own(origin: str, request: ConsoleRequest, origins: Collection[str]) -> bool:
    if origin in origins:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:  # no address
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc) and parts.netloc == request.headers.get("host", "")
