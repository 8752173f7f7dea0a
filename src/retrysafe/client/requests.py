"""An adapter for requests that retries.

    session = requests.Session()
    session.mount("https://", RetryAdapter())

The caller gets what requests always returns: a response, or its own exception with a note that names the key.
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
from retrysafe.client.errors import RetriesError, UnrepeatableBody, is_untrusted_certificate, iter_wrapped
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
    """Retries requests that are safe to retry, with one key per logical operation. `pool` goes to requests' own
    adapter."""

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
        copy = request.copy()  # gets the key; the caller's own request is not changed and may be sent again
        call = ClientCall(describe_request(copy, self.state.retries), self.state, self._unanswered.find(request))
        options = {"stream": stream, "timeout": timeout, "verify": verify, "cert": cert, "proxies": proxies}
        try:
            result = drive(call_flow(call), RequestsAttemptTransport(self, copy, options), self.state.ambient.sleep)
        finally:
            self._unanswered.remember(request, call.get_unanswered())
        if isinstance(result.attempt, FailedAttempt):
            annotate(result.attempt.error, call.request, result.log)
            raise result.attempt.error
        response: requests.Response = result.attempt.raw
        response.__dict__["retrysafe"] = result.log
        return response

    def close(self) -> None:
        super().close()
        self.state.close()

    def send_once(self, request: requests.PreparedRequest, options: dict[str, Any]) -> requests.Response:
        """Send one attempt with requests' own adapter."""
        return super().send(request, **options)


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
    """Read a file body into memory, so that it can be sent again, if its length is known and within the limit."""
    body: Any = request.body
    length = to_text(request.headers.get("content-length")) or ""
    if (
        read_repeatable_body(body) is None
        and hasattr(body, "read")
        and length.isdigit()
        and int(length) <= retries.max_body
    ):
        position = body.tell() if is_seekable(body) else None
        content = body.read()
        request.body = content.encode() if isinstance(content, str) else content
        if position is not None:
            body.seek(position)  # the caller's request still has the file and may be sent again


def is_seekable(body: Any) -> bool:
    return hasattr(body, "tell") and hasattr(body, "seek") and (not hasattr(body, "seekable") or body.seekable())


def classify_error(error: requests.RequestException) -> Reach:
    if isinstance(error, PERMANENT_ERRORS) or is_untrusted_certificate(error):
        return "hopeless"
    if isinstance(error, requests.ConnectTimeout):
        return "unsent"
    return "unsent" if any(isinstance(one, NewConnectionError) for one in iter_wrapped(error)) else "unclear"


def is_cut_short(response: requests.Response, method: str) -> bool:
    """True if an empty answer was cut off within its headers. http.client takes a closed connection for the end of the
    headers, so such an answer looks like a 201 without a body. It has neither a length nor `Connection: close`, and
    HTTP/1.1 requires one of them.
    """
    if method.upper() == "HEAD" or response.status_code in (204, 304) or getattr(response.raw, "version", 11) < 11:
        return False
    framed = "content-length" in response.headers or "transfer-encoding" in response.headers
    return not framed and "close" not in response.headers.get("connection", "").lower()


class RequestsAttemptTransport:
    """Sends the attempts of one request."""

    def __init__(self, adapter: RetryAdapter, request: requests.PreparedRequest, options: dict[str, Any]) -> None:
        self._adapter, self._request, self._how = adapter, request, options
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
        """Read the body of a keyed request, unless the caller asked for a stream. The body of an error is always
        read."""
        headers = {name.lower(): value for name, value in response.headers.items()}
        failed = response.status_code >= 400
        if self._retries.is_keyed(self._request.method or "") and (failed or not self._how["stream"]):
            body = response.content
            if not body and is_cut_short(response, self._request.method or ""):
                raise requests.ConnectionError("the answer ended within its headers", request=self._request)
            return AnsweredAttempt(response.status_code, headers, body if failed else b"", response)
        return AnsweredAttempt(response.status_code, headers, b"", response)

    def discard(self, attempt: AnsweredAttempt) -> None:
        attempt.raw.close()
