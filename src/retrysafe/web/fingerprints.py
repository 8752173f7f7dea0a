"""The fingerprint of a request, by today's rule and by the older ones.

Two releases run side by side on one store, so a form changes only where it was wrong. The first rule compared the
decoded path and the first `boundary` of a multipart body. Where that loses nothing, its form is still the form. Where
it took two requests for one (an escaped slash, a path that is no UTF-8, two boundaries) the new form is written, and
the old one is kept beside it, so that a record of the release before is recognised.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from retrysafe.core.fingerprint import has_one_reading, media_type, of_body, of_request
from retrysafe.core.keys import frame
from retrysafe.core.records import Fingerprint
from retrysafe.web.paths import exact, spelled
from retrysafe.web.routes import Route
from retrysafe.web.view import RequestView

RAW = "application/octet-stream"


class Fingerprints(NamedTuple):
    """What is written, and what an older release would have written for the same request."""

    preferred: Fingerprint
    older: tuple[Fingerprint, ...] = ()


def of_http(view: RequestView, route: Route, chunks: list[bytes]) -> Fingerprints:
    """Every form of this request's fingerprint."""
    if route.fingerprint is not None:
        return _of_own(view, route.fingerprint(view, b"".join(chunks)))
    content_type = view.headers.get("content-type", "")
    first = of_request(view.method, view.path, view.query, content_type, chunks)
    path, readable = exact(view.raw, view.path), has_one_reading(content_type)
    if readable and path is None:
        return Fingerprints(first)
    media, body = (media_type(content_type), content_type) if readable else (content_type, RAW)
    algorithm, digest, length = of_body(body, chunks)
    head = frame("http2", view.method, path or spelled(view.path), view.query, media, algorithm, digest)
    return Fingerprints(Fingerprint(f"http2-{algorithm}", hashlib.sha256(head).digest(), length), (first,))


def _of_own(view: RequestView, value: bytes | str) -> Fingerprints:
    """By what the route says is the same; method and path are always compared besides."""
    first = Fingerprint("http-own1", hashlib.sha256(frame(view.method, view.path, value)).digest(), len(value))
    path = exact(view.raw, view.path)
    if path is None:
        return Fingerprints(first)
    framed = frame("http2", view.method, path, value)
    return Fingerprints(Fingerprint("http2-own1", hashlib.sha256(framed).digest(), len(value)), (first,))
