"""The headers of every answer, refusals and failures too, and the answers to bodies that are not read as forms."""

from __future__ import annotations

from retrysafe.console.messages import MAX_BODY_BYTES, ConsoleResponse

SECURITY_HEADERS = (
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    # Not `no-referrer`: with it, browsers send `Origin: null` with our own forms.
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)

DEFAULT_HEADERS = (
    # For what is no page. Pages bring both themselves.
    ("content-security-policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("cache-control", "no-store"),
)


def harden(response: ConsoleResponse) -> ConsoleResponse:
    """With each of these headers once."""
    wanted = (*DEFAULT_HEADERS, *SECURITY_HEADERS)
    return response.with_headers(pair for pair in wanted if not response.header(pair[0]))


def say(status: int, text: str) -> ConsoleResponse:
    """A short answer without markup."""
    return harden(ConsoleResponse(status, f"{text}\n".encode(), (("content-type", "text/plain; charset=utf-8"),)))


def list_headers(response: ConsoleResponse) -> list[tuple[str, str]]:
    """The headers that a server sends: with the length of the body. A 304 has none (RFC 9110, 8.6)."""
    if response.status == 304 or response.header("content-length"):
        return list(response.headers)
    return [*response.headers, ("content-length", str(len(response.body)))]


def drop_body(response: ConsoleResponse) -> ConsoleResponse:
    """The answer to HEAD. Its length is that of the answer to GET."""
    length = () if response.status == 304 else (("content-length", str(len(response.body))),)
    return response._replace(body=b"").with_headers(length)


def matches_etag(sent: str, etag: str) -> bool:
    """Whether `If-None-Match` names this ETag. A proxy that compresses has made it a weak one."""
    return etag in (each.strip().removeprefix("W/") for each in sent.split(","))


TOO_LARGE = say(413, "the body is too large")
BAD_LENGTH = say(400, "the length of the body is no number")
CUT_SHORT = say(400, "the body ended before its length; nothing was done")
"""A form whose sender went away half-way. Its last fields are missing, or are cut: it must not be obeyed."""


def find_bad_length(declared: str) -> ConsoleResponse | None:
    """The refusal of a body by its `Content-Length`; None if it may be read. An empty text: none was sent."""
    if declared and not (declared.isascii() and declared.isdecimal()):
        return BAD_LENGTH
    return TOO_LARGE if len(declared) > len(str(MAX_BODY_BYTES)) or int(declared or 0) > MAX_BODY_BYTES else None
