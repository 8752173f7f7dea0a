"""For developers: what an API was asked and what it answered, in a file that the console reads beside it.

    app.add_middleware(RequestLog)                      # FastAPI, Starlette: as the last, so that it is the outermost
    app.wsgi_app = RequestLogWsgi(app.wsgi_app)         # Flask

It writes the bodies of requests in the clear, so it is for development: the file can be read by its owner only, and
keeps the last requests.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from retrysafe.console.asgi import Receive, Scope, Send
from retrysafe.console.wsgi import Environ, StartResponse, WsgiApp
from retrysafe.core.fingerprint import media_type
from retrysafe.core.problem_names import problem_name

FILE_NAME = "retrysafe-requests.jsonl"
MAX_FILE_BYTES = 1024 * 1024
MAX_BODY_BYTES = 64 * 1024
MAX_FIELDS = 500
KEPT_LINES = 500
RAN_PROBLEMS = ("failed", "failed-for-now", "not-finished", "outcome-unrecorded", "unprotected")
"""Our own problems that say that the request did run."""
CALLER_DIGITS = 8
LATEST_SECONDS = 2.0**37
"""The year 6325. A line with another time was not written here."""


class SeenRequest(NamedTuple):
    """One request and its answer."""

    at: float
    method: str
    path: str
    key: str
    status: int
    replayed: bool
    problem: str
    """The title of the problem, if the answer is one."""
    fields: Mapping[str, str]
    """The body: each field by its path, as text."""
    query: str = ""
    media_type: str = ""
    caller: str = ""
    """Some digits of a hash of the Authorization header: the same key of another account is another key."""
    problem_type: str = ""
    """Which of our own problems the answer is; empty if it is none."""

    @property
    def refused(self) -> bool:
        """Whether the request did not run."""
        return self.problem_type not in ("", *RAN_PROBLEMS) and not self.replayed

    @property
    def ran(self) -> bool:
        return bool(self.key) and not self.refused and not self.replayed

    @property
    def outcome(self) -> str:
        if self.replayed:
            return "replayed"
        if self.refused:
            return f"refused: {self.problem}"
        if not self.key:
            return "ran without a key"
        return f"ran: {self.problem}" if self.problem_type else "ran: a new claim"

    def list_parts(self) -> dict[str, str]:
        """What is compared between two sends: all that the fingerprint is made of, each part by its name."""
        beside = {"(method)": self.method, "(path)": self.path, "(content type)": self.media_type}
        asked = {f"?{name}": value for name, value in parse_qsl(self.query, keep_blank_values=True)}
        return {**beside, **asked, **self.fields}


class FieldChange(NamedTuple):
    field: str
    before: str
    after: str


class LogFile:
    """The file, shared by the threads of a process. Lines are appended whole."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()

    def append(self, seen: SeenRequest) -> None:
        line = json.dumps(seen._asdict(), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with self._lock:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, line)
                size = os.fstat(handle).st_size
            finally:
                os.close(handle)
            if size > MAX_FILE_BYTES:
                self._shorten()

    def _shorten(self) -> None:
        kept = self.path.read_bytes().splitlines(keepends=True)[-KEPT_LINES:]
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.writelines(kept if sum(map(len, kept)) <= MAX_FILE_BYTES // 2 else kept[-KEPT_LINES // 10 :])
        beside.replace(self.path)

    def read(self) -> list[SeenRequest]:
        """The last requests, oldest first. A line that is no request is left out."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, self.path.stat().st_size - 2 * MAX_FILE_BYTES))
                lines = file.read().splitlines()[-KEPT_LINES:]
        except FileNotFoundError:
            return []
        found = (parse_line(line) for line in lines)
        return [seen for seen in found if seen is not None]


def parse_line(line: bytes) -> SeenRequest | None:
    try:
        whole = json.loads(line)
        fields = {str(name): str(value) for name, value in whole.pop("fields").items()}
        texts = {name: str(whole[name]) for name in ("method", "path", "key", "problem")}
        more = {name: str(whole.get(name, "")) for name in ("query", "media_type", "caller", "problem_type")}
        at = float(whole["at"])
        if not 0 <= at < LATEST_SECONDS:
            return None
        return SeenRequest(
            at=at, status=int(whole["status"]), replayed=bool(whole["replayed"]), fields=fields,
            **texts, **more,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


# What is kept of a body: pure ---------------------------------------------------------------------


def flatten(value: Any, path: str = "") -> dict[str, str]:
    """`{"a": {"b": [1]}}` as `{"a.b[0]": "1"}`."""
    if isinstance(value, dict) and value:
        parts = ((f"{path}.{name}" if path else str(name), each) for name, each in value.items())
    elif isinstance(value, list) and value:
        parts = ((f"{path}[{place}]", each) for place, each in enumerate(value))
    else:
        # JSON can name half of a pair of surrogates, which no UTF-8 has.
        return {path or "(body)": json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()}
    found: dict[str, str] = {}
    for name, each in parts:
        found.update(flatten(each, name))
        if len(found) > MAX_FIELDS:
            break
    return found


def read_fields(content_type: str, body: bytes) -> dict[str, str]:
    """The fields of a body: JSON, a form, or the whole as one text."""
    if not body:
        return {}
    try:
        if "json" in content_type:
            return flatten(json.loads(body))
        if "x-www-form-urlencoded" in content_type:
            return dict(parse_qsl(body.decode(), keep_blank_values=True))
    except (ValueError, RecursionError):
        pass
    return {"(body)": body[:2_000].decode("utf-8", "backslashreplace")}


def compare_fields(before: Mapping[str, str], after: Mapping[str, str]) -> list[FieldChange]:
    """Which fields changed between two sends. Empty if none did."""
    names = [*before, *(name for name in after if name not in before)]
    changes = (FieldChange(name, before.get(name, "(absent)"), after.get(name, "(absent)")) for name in names)
    return [change for change in changes if change.before != change.after]


def read_problem(content_type: str, body: bytes) -> tuple[str, str]:
    """The title of a problem, and which of ours it is; both empty if the answer is none."""
    if "problem+json" not in content_type:
        return "", ""
    try:
        whole = json.loads(body)
        named = str(whole.get("type") or "")
        return str(whole.get("title") or named or "problem"), problem_name(named) * ("retry_same_key" in whole)
    except (ValueError, AttributeError):
        return "problem", ""


class Recording:
    """One request while it is answered."""

    def __init__(self, method: str, path: str, query: str, headers: Mapping[str, str]) -> None:
        self._method, self._path, self._query, self._headers = method, path, query, headers
        self._body, self._answer = b"", b""
        self._status, self._answer_headers = 0, dict[str, str]()

    def add_body(self, data: bytes) -> None:
        self._body = (self._body + data)[:MAX_BODY_BYTES]

    def start_answer(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self._status = status
        self._answer_headers = {name.lower(): value for name, value in headers}

    def add_answer(self, data: bytes) -> None:
        self._answer = (self._answer + data)[:MAX_BODY_BYTES]

    def build(self) -> SeenRequest:
        problem, problem_type = read_problem(self._answer_headers.get("content-type", ""), self._answer)
        content_type, caller = self._headers.get("content-type", ""), self._headers.get("authorization", "")
        return SeenRequest(
            at=time.time(),
            method=self._method,
            path=self._path,
            key=self._headers.get("idempotency-key", ""),
            status=self._status,
            replayed=self._answer_headers.get("idempotent-replayed", "") == "true",
            problem=problem,
            fields=read_fields(content_type, self._body),
            query=self._query,
            media_type=media_type(content_type),
            caller=hashlib.sha256(caller.encode()).hexdigest()[:CALLER_DIGITS] if caller else "",
            problem_type=problem_type,
        )


SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")
"""Not written down: they change nothing."""


class RequestLog:
    """The ASGI middleware. `path` is the file, in the folder that the program runs in unless it says another."""

    def __init__(self, app: Callable[..., Any], path: str | Path = FILE_NAME) -> None:
        self._app, self._file = app, LogFile(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        query = bytes(scope.get("query_string", b"")).decode("latin-1")
        recording = Recording(scope["method"], scope["path"], query, headers)

        async def receive_and_keep() -> Any:
            message = await receive()
            recording.add_body(message.get("body", b"") if message["type"] == "http.request" else b"")
            return message

        async def send_and_keep(message: Any) -> None:
            if message["type"] == "http.response.start":
                pairs = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in message.get("headers", ())]
                recording.start_answer(message["status"], pairs)
            elif message["type"] == "http.response.body":
                recording.add_answer(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive_and_keep, send_and_keep)
        finally:
            self._file.append(recording.build())


def read_whole_body(environ: Environ) -> bytes:
    """The body, which the application gets again. One that comes in pieces has no length, and may be read to its end
    only where the server says that it has one."""
    declared = str(environ.get("CONTENT_LENGTH") or "").strip()
    if declared.isascii() and declared.isdecimal():
        return bytes(environ["wsgi.input"].read(int(declared)))
    return bytes(environ["wsgi.input"].read()) if environ.get("wsgi.input_terminated") and not declared else b""


class RequestLogWsgi:
    """The WSGI middleware."""

    def __init__(self, app: WsgiApp, path: str | Path = FILE_NAME) -> None:
        self._app, self._file = app, LogFile(path)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in SAFE_METHODS:
            return self._app(environ, start_response)
        from io import BytesIO

        headers = {n[5:].replace("_", "-").lower(): str(v) for n, v in environ.items() if n.startswith("HTTP_")}
        headers["content-type"] = str(environ.get("CONTENT_TYPE", ""))
        path, query = str(environ.get("PATH_INFO", "")), str(environ.get("QUERY_STRING", ""))
        recording = Recording(environ["REQUEST_METHOD"], path, query, headers)
        body = read_whole_body(environ)
        recording.add_body(body)

        def start_and_keep(status: str, pairs: list[tuple[str, str]], *more: Any) -> Any:
            recording.start_answer(int(status.split(maxsplit=1)[0]), pairs)
            return start_response(status, pairs, *more)

        return self._pass_on({**environ, "wsgi.input": BytesIO(body)}, start_and_keep, recording)

    def _pass_on(self, environ: Environ, start: StartResponse, recording: Recording) -> Iterable[bytes]:
        parts = self._app(environ, start)
        try:
            for part in parts:
                recording.add_answer(part)
                yield part
        finally:
            if hasattr(parts, "close"):
                parts.close()
            self._file.append(recording.build())
