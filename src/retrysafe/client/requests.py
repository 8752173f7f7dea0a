"""requests: an adapter to mount.

    session = requests.Session()
    session.mount("https://", RetryAdapter())

What the caller sees is requests as always: a response, or its own exception with a note that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import NewConnectionError

from retrysafe.client.budget import Budget
from retrysafe.client.decide import AnsweredAttempt, AttemptResult, FailedAttempt, Reach
from retrysafe.client.errors import RetriesError, UnrepeatableBody
from retrysafe.client.exception_chain import is_untrusted_certificate, iter_wrapped
from retrysafe.client.flow import ClientCall, RequestInfo, annotate, build_client_state, call_flow, drive
from retrysafe.client.journal import Journal
from retrysafe.client.settings import Clock, Retries
from retrysafe.client.unanswered import UnansweredByHooks

PERMANENT_ERRORS = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidHeader,
    requests.exceptions.ContentDecodingError,
)


class RetryAdapter(HTTPAdapter):
    """Retries what may be retried, with one key per logical operation. `pool` goes to requests' own adapter."""

    def __init__(
        self,
        *,
        retries: Retries | None = None,
        journal: Journal | str | Path | None = None,
        budget: Budget | None = None,
        ambient: Clock | None = None,
        **pool: Any,
    ) -> None:
        if "max_retries" in pool:
            raise RetriesError(
                "max_retries", pool["max_retries"], "two layers of retries multiply; set retries= instead"
            )
        super().__init__(**pool)
        self.state = build_client_state(retries, journal, budget, ambient)
        self._unanswered = UnansweredByHooks()

    def send(  # noqa: PLR0917  (the signature is that of requests)
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        ours = request.copy()  # what goes over the wire with our key; the caller's own may be sent again
        call = ClientCall(describe_request(ours, self.state.retries), self.state, self._unanswered.find(request))
        how = {"stream": stream, "timeout": timeout, "verify": verify, "cert": cert, "proxies": proxies}
        try:
            ending = drive(call_flow(call), RequestsAttemptTransport(self, ours, how), self.state.ambient.sleep)
        finally:
            self._unanswered.remember(request, call.get_unanswered())
        if isinstance(ending.seen, FailedAttempt):
            annotate(ending.seen.error, call.request, ending.trail)
            raise ending.seen.error
        response: requests.Response = ending.seen.raw
        response.__dict__["retrysafe"] = ending.trail
        return response

    def close(self) -> None:
        super().close()
        self.state.close()

    def send_once(self, request: requests.PreparedRequest, how: dict[str, Any]) -> requests.Response:
        return super().send(request, **how)


def describe_request(request: requests.PreparedRequest, retries: Retries) -> RequestInfo:
    method, url = (request.method or "GET").upper(), urlsplit(request.url or "")
    host, path = url.hostname or "", url.path or "/"
    if retries.is_keyed(method):
        buffer_file_body(request, retries)
    body = read_repeatable_body(request.body)
    if body is None and retries.is_keyed(method) and retries.streams == "refuse":
        raise UnrepeatableBody(method, f"{host}{path}", retries.max_body)
    given = to_text(request.headers.get(retries.header)) if retries.is_keyed(method) else None
    kind = to_text(request.headers.get("content-type")) or ""
    return RequestInfo(method, host, path, url.query, kind, body, given, url.scheme, url.port)


def to_text(value: str | bytes | None) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def read_repeatable_body(body: Any) -> bytes | None:
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    return bytes(body) if isinstance(body, bytes | bytearray) else None


def buffer_file_body(request: requests.PreparedRequest, retries: Retries) -> None:
    """Read a file of known and moderate length, so that it can be sent again."""
    body: Any = request.body
    length = to_text(request.headers.get("content-length")) or ""
    if (
        read_repeatable_body(body) is None
        and hasattr(body, "read")
        and length.isdigit()
        and int(length) <= retries.max_body
    ):
        place = body.tell() if is_seekable(body) else None
        found = body.read()
        request.body = found.encode() if isinstance(found, str) else found
        if place is not None:
            body.seek(place)  # the caller's request still has the file, and may be sent again


def is_seekable(body: Any) -> bool:
    return hasattr(body, "tell") and hasattr(body, "seek") and (not hasattr(body, "seekable") or body.seekable())


def classify_error(error: requests.RequestException) -> Reach:
    if isinstance(error, PERMANENT_ERRORS) or is_untrusted_certificate(error):
        return "hopeless"
    if isinstance(error, requests.ConnectTimeout):
        return "unsent"
    return "unsent" if any(isinstance(one, NewConnectionError) for one in iter_wrapped(error)) else "unclear"


def is_cut_short(response: requests.Response, method: str) -> bool:
    """Whether an empty answer lost its end. http.client takes a connection that closes within the headers for the end
    of the headers, and then a 201 without a body is all that is left of the answer. Such an answer does not say how
    long it is, nor that the connection ends with it, which HTTP/1.1 asks for.
    """
    if method.upper() == "HEAD" or response.status_code in (204, 304) or getattr(response.raw, "version", 11) < 11:
        return False
    framed = "content-length" in response.headers or "transfer-encoding" in response.headers
    return not framed and "close" not in response.headers.get("connection", "").lower()


class RequestsAttemptTransport:
    """The hands."""

    def __init__(self, adapter: RetryAdapter, request: requests.PreparedRequest, how: dict[str, Any]) -> None:
        self._adapter, self._request, self._how = adapter, request, how
        self._retries = adapter.state.retries

    def send(self, key: str | None) -> AttemptResult:
        if key is not None:
            self._request.headers[self._retries.header] = key
        try:
            response = self._adapter.send_once(self._request, self._how)
            return self._build_answered(response)
        except requests.RequestException as error:
            return FailedAttempt(error, classify_error(error))

    def _build_answered(self, response: requests.Response) -> AnsweredAttempt:
        """Whoever did not ask for a stream gets a body that is all there; errors are read in any case."""
        headers = {name.lower(): value for name, value in response.headers.items()}
        failed = response.status_code >= 400
        if self._retries.is_keyed(self._request.method or "") and (failed or not self._how["stream"]):
            body = response.content
            if not body and is_cut_short(response, self._request.method or ""):
                raise requests.ConnectionError("the answer ended within its headers", request=self._request)
            return AnsweredAttempt(response.status_code, headers, body if failed else b"", response)
        return AnsweredAttempt(response.status_code, headers, b"", response)

    def discard(self, seen: AnsweredAttempt) -> None:
        seen.raw.close()
