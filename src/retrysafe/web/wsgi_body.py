"""The request body of WSGI: read once, exactly to its end, and handed to the application again.

`wsgi.input` has no end of its own on many servers (wsgiref and Flask's development server hand over the socket): one
byte beyond CONTENT_LENGTH and the request hangs for ever. Only where the server says `wsgi.input_terminated` may it be
read until it is empty.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

from retrysafe.web import problems
from retrysafe.web.exchange import DRAIN_LIMIT_BYTES, BodyRefused
from retrysafe.web.problems import Problem

PIECE_BYTES = 64 * 1024


class WsgiBody:
    """What the application finds as `wsgi.input`. Nothing is read before somebody wants it."""

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
        """The whole body, before anything is claimed; the application will get it again, and with `keep` once more
        after each `rewind`."""
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
        """From the beginning again. Only what was drained is claimed, so nothing is left behind it."""
        self._file.seek(0)

    def drain_refused(self, seconds: float) -> None:
        """Read on for a while what was refused as too large."""
        known = int(self._declared) if self._declared.isdecimal() else DRAIN_LIMIT_BYTES if self._terminated else 0
        left, deadline = 0 if self._expects else min(known, DRAIN_LIMIT_BYTES), time.monotonic() + seconds
        while self._refused is problems.TOO_LARGE and left > 0 and time.monotonic() < deadline:
            piece = self._input.read(min(left, PIECE_BYTES))
            if not piece:
                return
            left -= len(piece)

    # What applications call -----------------------------------------------------------------------

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

    # Reading it -----------------------------------------------------------------------------------

    def _load(self, limit: int, seconds: float) -> None:
        if self._file is not None:
            return
        if self._declared and not self._declared.isdecimal():
            self._refused, self._file = problems.UNREADABLE, io.BytesIO()
        elif self._declared and int(self._declared) > limit:
            self._refused, self._file = problems.TOO_LARGE, self._input  # the application may take it as it comes
        elif self._declared:
            self._fill(int(self._declared), seconds)
            if self._refused is None and sum(map(len, self._read)) < int(self._declared):
                self._refused = problems.UNREADABLE  # the client left half way
            self._file = io.BytesIO(b"".join(self._read))
        elif self._terminated:
            self._fill(limit + 1, seconds)
            whole = b"".join(self._read)
            self._file = io.BytesIO(whole)
            if len(whole) > limit:
                self._refused, self._file = problems.TOO_LARGE, _ChainedStream(whole, self._input)
        else:
            self._file = io.BytesIO()  # no length and no end: there is no body

    def _fill(self, wanted: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while wanted > 0:
            piece = self._input.read(min(wanted, PIECE_BYTES))
            if not piece:
                return
            self._read.append(piece)
            wanted -= len(piece)
            if time.monotonic() > deadline:
                self._refused = problems.TOO_SLOW
                return


class _ChainedStream:
    """What was read already, then the rest as it comes."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head = io.BytesIO(head)
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        data = self._head.read(size)
        if size < 0:
            return data + bytes(self._rest.read())
        return data or bytes(self._rest.read(size))

    def readline(self, size: int = -1) -> bytes:
        line = self._head.readline(size)
        if line.endswith(b"\n") or (0 <= size <= len(line)):
            return line
        return line + bytes(self._rest.readline())

    def readlines(self, hint: int = -1) -> list[bytes]:
        return list(iter(self.readline, b""))
