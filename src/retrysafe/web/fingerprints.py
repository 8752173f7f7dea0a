"""The fingerprint of a request.

Two releases may use one store at the same time, so the form of a fingerprint changes only where it was wrong. The first
form compared the decoded path and the first `boundary` of a multipart body. Where that loses no information, the first
form is still used. Where it took two requests for one (an escaped slash, a path that is not UTF-8, two boundaries, a
multipart body of which parsers skip different parts), the new form is written. The old form is not accepted there,
because the other request has it, too (decision 61).
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
    """The hash of what identifies a request: method, path, query, media type and body."""
    if route.fingerprint is not None:
        return _fingerprint_custom(view, route.fingerprint(view, b"".join(chunks)))
    content_type = view.headers.get("content-type", "")
    first = fingerprint_http(view.method, view.path, view.query, content_type, chunks)
    readable = ";" not in content_type or has_one_reading(content_type, chunks)
    sent: bytes | None = view.raw.get("raw_path")
    if readable and sent and sent.find(b"%") < 0:  # without an escape, as on ASGI nearly always, decoding lost nothing
        return first
    path = find_exact_path(view.raw, view.path)
    if readable and path is None:
        return first
    media, body = (media_type(content_type), content_type) if readable else (content_type, RAW_MEDIA_TYPE)
    algorithm, digest, length = fingerprint_body(body, chunks)
    head = frame("http2", view.method, path or normalize_path(view.path), view.query, media, algorithm, digest)
    return Fingerprint(f"http2-{algorithm}", hashlib.sha256(head).digest(), length)


def _fingerprint_custom(view: RequestView, value: bytes | str) -> Fingerprint:
    """The fingerprint by the route's own function. Method and path are always compared, too."""
    first = Fingerprint("http-own1", hashlib.sha256(frame(view.method, view.path, value)).digest(), len(value))
    path = find_exact_path(view.raw, view.path)
    if path is None:
        return first
    framed = frame("http2", view.method, path, value)
    return Fingerprint("http2-own1", hashlib.sha256(framed).digest(), len(value))
