"""A small HTTP client that costs less than what it measures: one write per request, one look at the answer."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

BODY = b'{"amount": 10000, "currency": "usd", "description": "' + b"order 4127 " * 10 + b'"}'

REST = f"Authorization: Bearer account-7\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n"


def request(path: str, key: str | None, host: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{REST}"
    line = f"Idempotency-Key: {key}\r\n" if key else ""
    return (head + line + "\r\n").encode() + BODY


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[int] | None = None
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self._data.lower().find(b"content-length: ", 0, end)
        if at >= 0:
            whole = len(self._data) >= end + 4 + int(self._data[at + 16 : self._data.find(b"\r", at)])
        else:  # in chunks
            whole = self._data.endswith(b"0\r\n\r\n")
        if whole and self._waiter is not None:
            status = int(self._data[9:12])
            waiter, self._waiter, self._data = self._waiter, None, b""
            if not waiter.done():
                waiter.set_result(status)

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionError(f"the server closed the connection: {error}"))

    def ask(self, data: bytes) -> asyncio.Future[int]:
        self._waiter = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self._waiter


class Client:
    """Connections to one server, as many as are asked for at once."""

    def __init__(self, port: int) -> None:
        self.host = f"127.0.0.1:{port}"
        self._port = port
        self._idle: deque[Connection] = deque()
        self.statuses: dict[int, int] = {}

    async def post(self, path: str, key: str | None) -> int:
        while self._idle and self._idle[-1].transport.is_closing():
            self._idle.pop()
        connection = self._idle.pop() if self._idle else await self._connect()
        status = await connection.ask(request(path, key, self.host))
        self._idle.append(connection)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        return status

    async def _connect(self) -> Connection:
        _, made = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self._port)
        return made

    def close(self) -> None:
        for connection in self._idle:
            connection.transport.close()
