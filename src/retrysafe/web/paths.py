"""The path of a request: its one spelling for the fingerprint, and its safe name for records and logs.

Servers hand over the decoded path, and that loses something: `/a%2Fb` and `/a/b` become one text, and so do bytes that
are no UTF-8. Where the server also tells the path as it was sent, that is what counts, in the spelling of RFC 3986,
section 6.2.2: escapes in upper case, and none where a character may stand for itself.

We go one step further than that section. Characters like `:` and `;` may stand in a path as they are, and no framework
tells `%3A` from `:` when it chooses a route, so the two are one request here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote_to_bytes

MAX_TARGET_CHARS = 200

RAW_PATH = "retrysafe.raw_path"
"""Where an adapter that makes its own environ leaves the path as it was sent."""

_PLAIN = "!$&'()*+,;=:@"  # besides letters, digits and `-._~`: what a segment may hold as it is
_PIECE = re.compile(rb"%([0-9A-Fa-f]{2})|(.)", re.DOTALL)
_NORMALIZED = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@/]*")
_CUT_ESCAPE = re.compile(r"%[0-9A-F]?\Z")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


def normalize_raw_path(raw: bytes) -> str:
    """The one spelling of a path that was sent as these bytes."""
    return _PIECE.sub(_normalize_piece, raw).decode("ascii")


def _normalize_piece(piece: re.Match[bytes]) -> bytes:
    escaped, literal = piece.groups()
    if literal is not None:
        return literal if literal == b"/" else _quote_byte(literal)
    return _quote_byte(bytes.fromhex(escaped.decode()))


def _quote_byte(one: bytes) -> bytes:
    return quote(one, safe=_PLAIN).encode()


def normalize_path(path: str) -> str:
    """The one spelling of a decoded path."""
    return path if _NORMALIZED.fullmatch(path) else quote(path, safe=_PLAIN + "/", errors="surrogatepass")


def find_exact_path(request: Mapping[str, Any], path: str) -> str | None:
    """The spelling of what was sent; None where the decoded `path` says as much, as it nearly always does."""
    wsgi = "REQUEST_METHOD" in request
    raw = _raw_path_from_wsgi(request, path) if wsgi else _raw_path_from_asgi(request, path)
    if raw is None:
        return None
    sent = normalize_raw_path(raw)
    return None if sent == normalize_path(path) else sent


def _raw_path_from_asgi(scope: Mapping[str, Any], path: str) -> bytes | None:
    raw: bytes | None = scope.get("raw_path")
    if not raw or b"%" not in raw:
        return None  # nothing was escaped, so nothing got lost
    if _decode_raw_path(raw) == path:
        return raw
    root: str = scope.get("root_path", "")
    # Some servers leave the mount out of the raw path.
    return normalize_path(root).encode() + raw if root and root + _decode_raw_path(raw) == path else None


def _raw_path_from_wsgi(environ: Mapping[str, Any], path: str) -> bytes | None:
    given: bytes | None = environ.get(RAW_PATH)
    if given is not None:
        return given
    whole = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    address: str = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
    if address and (not whole.isascii() or "%2f" in address.lower()):
        raw = _path_of(address).encode("latin-1", "replace")
        if _decode_raw_path(raw) == path:
            return raw
    # The decoded path is bytes in disguise: by PEP 3333 nothing of them is lost but which slashes were escaped.
    return None if whole.isascii() else quote(_encode_wsgi_text(whole), safe=_PLAIN + "/").encode()


def _encode_wsgi_text(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")  # a server that does not follow PEP 3333


def _path_of(address: str) -> str:
    origin = _ORIGIN.match(address)
    return re.split("[?#]", address[origin.end() :] if origin else address, maxsplit=1)[0]


def _decode_raw_path(raw: bytes) -> str:
    """As servers decode it. Whoever rewrote the path on its way (a mount, a proxy) left a raw path that says
    something else; that one is not used."""
    return unquote_to_bytes(raw).decode("utf-8", "replace")


# Names ----------------------------------------------------------------------------------------------


def target_of(method: str, path: str) -> str:
    """What a request to no listed route is called: its path is the client's text, and is stored and logged."""
    return _truncate_target(f"{method} {normalize_path(path)}")


def sanitize_target(target: str) -> str:
    """A name from an adapter or a developer, safe to store and to log: one line, and of bounded length."""
    if not target.isprintable():
        target = "".join(one if one.isprintable() else quote(one, errors="surrogatepass") for one in target)
    return _truncate_target(target)


def _truncate_target(target: str) -> str:
    return target if len(target) <= MAX_TARGET_CHARS else _CUT_ESCAPE.sub("", target[:MAX_TARGET_CHARS])
