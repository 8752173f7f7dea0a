"""The request body on WSGI: read once, exactly to its end, and given to the application again.

On many servers `wsgi.input` has no end (wsgiref and Flask's development server pass the socket): reading one byte
beyond CONTENT_LENGTH blocks for ever. It may be read until it is empty only if the server sets `wsgi.input_terminated`.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

from retrysafe.engine.problem_documents import Problem
from retrysafe.web import problems
from retrysafe.web.exchange import DRAIN_LIMIT_BYTES, BodyRefused

PIECE_BYTES = 64 * 1024


class WsgiBody:
    """The `wsgi.input` of the application. Nothing is read before the claim or the application needs it."""

    def __init__(self, environ: dict[str, Any], limit: int) -> None:
        self._input = environ["wsgi.input"]
        self._declared = str(environ.get("CONTENT_LENGTH") or "").strip()
        self._terminated = bool(environ.get("wsgi.input_terminated"))
        self._limit = limit
        self._expects = "HTTP_EXPECT" in environ
        self._read: list[bytes] = []
        self._refused: Problem | None = None
        self._file: Any = None

    def read_all(self, limit: int, seconds: float, *, keep: bool = False) -> list[bytes]:
        """Read the whole body, before the claim. The application gets it again; with `keep` also after a `rewind`."""
        self._load(min(limit, self._limit), seconds)
        if self._refused is not None:
            raise BodyRefused(self._refused)
        if sum(map(len, self._read)) > limit:
            raise BodyRefused(problems.TOO_LARGE)
        chunks = self._read
        if not keep:
            self._read = []
        return chunks

    def rewind(self) -> None:
        """Start again from the first byte. A claimed body was read whole, so nothing is left in the server's stream."""
        self._file.seek(0)

    def drain_refused(self, seconds: float) -> None:
        """Read some more of a body that was refused as too large (DRAIN_LIMIT_BYTES says why)."""
        known = int(self._declared) if self._declared.isdecimal() else DRAIN_LIMIT_BYTES if self._terminated else 0
        remaining, deadline = 0 if self._expects else min(known, DRAIN_LIMIT_BYTES), time.monotonic() + seconds
        while self._refused is problems.TOO_LARGE and remaining > 0 and time.monotonic() < deadline:
            piece = self._input.read(min(remaining, PIECE_BYTES))
            if not piece:
                return
            remaining -= len(piece)

    # Called by the application -----------------------------------------------------------------------

    def read(self, size: int | None = -1) -> bytes:
        data: bytes = self._open_file().read(-1 if size is None else size)
        return data

    def readline(self, size: int | None = -1) -> bytes:
        line: bytes = self._open_file().readline(-1 if size is None else size)
        return line

    def readlines(self, hint: int = -1) -> list[bytes]:
        lines: list[bytes] = self._open_file().readlines(hint)
        return lines

    def readinto(self, target: Any) -> int:
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def _open_file(self) -> Any:
        self._load(self._limit, float("inf"))
        return self._file

    # Reading -----------------------------------------------------------------------------------

    def _load(self, limit: int, seconds: float) -> None:
        if self._file is not None:
            return
        if self._declared and not self._declared.isdecimal():
            self._refused, self._file = problems.UNREADABLE, io.BytesIO()
        elif self._declared and int(self._declared) > limit:
            self._refused, self._file = (
                problems.TOO_LARGE,
                self._input,
            )  # the application may read it
        elif self._declared:
            self._fill(int(self._declared), seconds)
            if self._refused is None and sum(map(len, self._read)) < int(self._declared):
                self._refused = problems.UNREADABLE  # the client disconnected half way
            self._file = io.BytesIO(b"".join(self._read))
        elif self._terminated:
            self._fill(limit + 1, seconds)
            whole = b"".join(self._read)
            self._file = io.BytesIO(whole)
            if len(whole) > limit:
                self._refused, self._file = problems.TOO_LARGE, ChainedStream(whole, self._input)
        else:
            self._file = io.BytesIO()  # no length and no known end: no body

    def _fill(self, size: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while size > 0:
            piece = self._input.read(min(size, PIECE_BYTES))
            if not piece:
                return
            self._read.append(piece)
            size -= len(piece)
            if time.monotonic() > deadline:
                self._refused = problems.TOO_SLOW
                return


class ChainedStream:
    """A file of the bytes that were read already, followed by the rest of the stream that they came from."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head = io.BytesIO(head)
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        data = self._head.read(size)
        missing = size - len(data) if size >= 0 else -1
        return data + bytes(self._rest.read(missing)) if missing else data

    def readline(self, size: int = -1) -> bytes:
        """At most one line and, unless `size` is negative, at most `size` bytes. A line may begin in the first part and
        end in the second."""
        line = self._head.readline(size)
        missing = size - len(line) if size >= 0 else -1
        return line if line.endswith(b"\n") or not missing else line + bytes(self._rest.readline(missing))

    def readlines(self, hint: int = -1) -> list[bytes]:
        return list(iter(self.readline, b""))
