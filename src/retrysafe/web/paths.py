"""The path of a request: normalized for the fingerprint, and as a safe name for records and logs.

Servers pass the decoded path, which loses information: `/a%2Fb` and `/a/b` become the same text, and so do different
bytes that are not UTF-8. If the server also passes the path as it was sent, that one is used, normalized as RFC 3986,
section 6.2.2, says: percent-escapes in upper case, and no escapes of unreserved characters.

We normalize one step further. Characters like `:` and `;` may stand unescaped in a path, and no framework distinguishes
`%3A` from `:` when it chooses a route, so both are the same request here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote_to_bytes

MAX_TARGET_CHARS = 200

RAW_PATH = "retrysafe.raw_path"
"""The environ key under which an adapter that builds its own environ puts the path as it was sent."""

_PLAIN = "!$&'()*+,;=:@"  # what a path segment may hold unescaped, besides letters, digits and `-._~`
_PIECE = re.compile(rb"%([0-9A-Fa-f]{2})|(.)", re.DOTALL)
_NORMALIZED = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@/]*")
_CUT_ESCAPE = re.compile(r"%[0-9A-F]?\Z")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


def normalize_raw_path(raw: bytes) -> str:
    """The normalized form of a path that was sent as these bytes."""
    return _PIECE.sub(_normalize_piece, raw).decode("ascii")


def _normalize_piece(piece: re.Match[bytes]) -> bytes:
    escaped, literal = piece.groups()
    if literal is not None:
        return literal if literal == b"/" else _quote_byte(literal)
    return _quote_byte(bytes.fromhex(escaped.decode()))


def _quote_byte(one: bytes) -> bytes:
    return quote(one, safe=_PLAIN).encode()


def normalize_path(path: str) -> str:
    """The normalized form of a decoded path."""
    return path if _NORMALIZED.fullmatch(path) else quote(path, safe=_PLAIN + "/", errors="surrogatepass")


def find_exact_path(request: Mapping[str, Any], path: str) -> str | None:
    """The normalized form of the path as it was sent; None if the decoded `path` has the same, as nearly always."""
    wsgi = "REQUEST_METHOD" in request
    raw = _raw_path_from_wsgi(request, path) if wsgi else _raw_path_from_asgi(request, path)
    if raw is None:
        return None
    sent = normalize_raw_path(raw)
    return None if sent == normalize_path(path) else sent


def _raw_path_from_asgi(scope: Mapping[str, Any], path: str) -> bytes | None:
    raw: bytes | None = scope.get("raw_path")
    if not raw or b"%" not in raw:
        return None  # without an escape, decoding loses nothing
    if _decode_raw_path(raw) == path:
        return raw
    root: str = scope.get("root_path", "")
    # Some servers leave the mount path out of the raw path.
    return normalize_path(root).encode() + raw if root and root + _decode_raw_path(raw) == path else None


def _raw_path_from_wsgi(environ: Mapping[str, Any], path: str) -> bytes | None:
    sent_path: bytes | None = environ.get(RAW_PATH)
    if sent_path is not None:
        return sent_path
    whole = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    address: str = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
    if address and (not whole.isascii() or "%2f" in address.lower()):
        raw = _extract_path(address).encode("latin-1", "replace")
        if _decode_raw_path(raw) == path:
            return raw
    # By PEP 3333 the decoded path is bytes decoded as latin-1. Nothing is lost except which slashes were escaped.
    return None if whole.isascii() else quote(_encode_wsgi_text(whole), safe=_PLAIN + "/").encode()


def _encode_wsgi_text(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")  # a server that does not follow PEP 3333


def _extract_path(address: str) -> str:
    origin = _ORIGIN.match(address)
    return re.split("[?#]", address[origin.end() :] if origin else address, maxsplit=1)[0]


def _decode_raw_path(raw: bytes) -> str:
    """Decode it as servers do. If a mount or a proxy has rewritten the path, the raw path does not match the decoded
    one, and it is not used."""
    return unquote_to_bytes(raw).decode("utf-8", "replace")


# Names ----------------------------------------------------------------------------------------------


def build_target(method: str, path: str) -> str:
    """The name of a request whose route is not listed. Its path is chosen by the client, and is stored and logged."""
    return _truncate_target(f"{method} {normalize_path(path)}")


def sanitize_target(target: str) -> str:
    """A name given by an adapter or a developer, made safe to store and to log: one line of bounded length."""
    if not target.isprintable():
        target = "".join(one if one.isprintable() else quote(one, errors="surrogatepass") for one in target)
    return _truncate_target(target)


def _truncate_target(target: str) -> str:
    return target if len(target) <= MAX_TARGET_CHARS else _CUT_ESCAPE.sub("", target[:MAX_TARGET_CHARS])
