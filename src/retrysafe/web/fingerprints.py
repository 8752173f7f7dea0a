"""The fingerprint of a request, by the rule that is right for it.

Two releases run side by side on one store, so a form changes only where it was wrong. The first rule compared the
decoded path and the first `boundary` of a multipart body. Where that loses nothing, its form is still the form. Where
it took two requests for one (an escaped slash, a path that is no UTF-8, two boundaries) the new form is written. The
old one is not accepted beside it: it is the form of the other request as well (decision 61).
"""

from __future__ import annotations

import hashlib

from retrysafe.core.fingerprint import fingerprint_body, fingerprint_http, has_one_reading, media_type
from retrysafe.core.keys import frame
from retrysafe.core.records import Fingerprint
from retrysafe.web.paths import find_exact_path, normalize_path
from retrysafe.web.routes import Route
from retrysafe.web.view import RequestView

RAW_MEDIA_TYPE = "application/octet-stream"


def fingerprint_request(view: RequestView, route: Route, chunks: list[bytes]) -> Fingerprint:
    """What a request is, boiled down."""
    if route.fingerprint is not None:
        return _fingerprint_custom(view, route.fingerprint(view, b"".join(chunks)))
    content_type = view.headers.get("content-type", "")
    first = fingerprint_http(view.method, view.path, view.query, content_type, chunks)
    path, readable = find_exact_path(view.raw, view.path), has_one_reading(content_type)
    if readable and path is None:
        return first
    media, body = (media_type(content_type), content_type) if readable else (content_type, RAW_MEDIA_TYPE)
    algorithm, digest, length = fingerprint_body(body, chunks)
    head = frame("http2", view.method, path or normalize_path(view.path), view.query, media, algorithm, digest)
    return Fingerprint(f"http2-{algorithm}", hashlib.sha256(head).digest(), length)


def _fingerprint_custom(view: RequestView, value: bytes | str) -> Fingerprint:
    """By what the route says is the same; method and path are always compared besides."""
    first = Fingerprint("http-own1", hashlib.sha256(frame(view.method, view.path, value)).digest(), len(value))
    path = find_exact_path(view.raw, view.path)
    if path is None:
        return first
    framed = frame("http2", view.method, path, value)
    return Fingerprint("http2-own1", hashlib.sha256(framed).digest(), len(value))
