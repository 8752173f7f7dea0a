"""Scripts and the style sheet. They are vendored: no page asks another host for anything."""

from __future__ import annotations

from retrysafe.console.headers import matches_etag
from retrysafe.console.messages import ConsoleResponse
from retrysafe.console.rendering import read_asset
from retrysafe.console.visit import Visit
from retrysafe.operators.errors import NotFound


def send_asset(visit: Visit, name: str) -> ConsoleResponse:
    found = read_asset(name)
    if found is None:
        raise NotFound(f"there is no file {name!r}")
    data, content_type, etag = found
    headers = (("content-type", content_type), ("etag", etag), ("cache-control", "private, max-age=3600"))
    if matches_etag(visit.request.headers.get("if-none-match", ""), etag):
        return ConsoleResponse(304, b"", headers)
    return ConsoleResponse(200, data, headers)
