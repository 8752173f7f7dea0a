"""The application's answer on WSGI: collected, stored, then given to the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from itertools import chain
from typing import Any, Literal

from retrysafe.web.capture import AnswerBuffer, HeaderPairs, Response, check_headers, is_stream
from retrysafe.web.sync_async import SyncExchange

Environ = dict[str, Any]
Write = Callable[[bytes], object]
StartResponse = Callable[..., Write]
WSGIApp = Callable[[Environ, StartResponse], Iterable[bytes]]


class AnswerCollector:
    """Collects the answer between the application and the server's `start_response`."""

    def __init__(self, exchange: SyncExchange, start_response: StartResponse) -> None:
        self._exchange = exchange
        self._start_response = start_response
        self._buffer = AnswerBuffer(exchange.policy.max_answer)
        self._status_line = ""
        self._headers: HeaderPairs = ()
        self._passthrough: Literal["", "settled", "not final"] = ""
        self._write: Write | None = None

    # What the application calls -------------------------------------------------------------------

    def start_response(self, line: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Write:
        exchange = self._exchange
        if self._write is not None:  # headers are sent: the server re-raises the error, or reports the misuse
            return self._start_response(line, headers, exc_info)
        if exchange.response is not None:
            return _discard
        if not exchange.claimed:
            if exchange.refuse_if_unprotected(_parse_status(line)):
                return _discard
            return self._start_server_response(line, headers, exc_info)
        if self._status_line and exc_info is None:
            raise AssertionError("start_response was called twice without exc_info")
        self._status_line, self._headers = line, check_headers(list(headers))
        self._buffer = AnswerBuffer(exchange.policy.max_answer)  # an error page replaces what came before
        return self._write_legacy

    def _write_legacy(self, data: bytes) -> None:
        """The `write` callable of old applications. Its bytes come before the returned ones."""
        if self._exchange.response is not None:
            return
        if self._write is not None:
            self._write(data)
        elif not self._buffer.add(data):
            self._pass_through("too_large")
            if self._exchange.response is None:
                write = self._start_server_response(self._status_line, self._headers)
                for chunk in self._buffer.chunks:
                    write(chunk)
                self._buffer = AnswerBuffer(0)

    # What the middleware calls --------------------------------------------------------------------

    def collect(self, result: Iterable[bytes]) -> Iterable[bytes]:
        """The application returned its result: iterate it to the end, unless the answer passes through."""
        exchange = self._exchange
        if not exchange.claimed and (self._write is not None or exchange.response is not None):
            return self._pass_unclaimed(result)
        rest = iter(result)
        try:
            complete = self._collect_chunks(rest)
        except BaseException:
            close_result(result)
            raise
        if exchange.response is not None:
            close_result(result)
            return self.send_own(exchange.response)
        if not complete:
            return PassedResponse(self, chain(self._iter_buffered(), rest), result)
        if not exchange.claimed:
            return PassedResponse(self, iter(self._buffer.chunks), result)
        close_result(result)
        return self._settle_answer()

    def send_own(self, response: Response) -> Iterable[bytes]:
        if self._exchange.rolled_back:
            return ()  # the rerun will answer
        return transmit(self._start_response, response.with_headers(*self._exchange.extra_headers()))

    def settle_failed(self, error: Exception) -> Iterable[bytes]:
        """The application raised. If it had not answered, our own answer is sent, and the error is raised after it."""
        exchange = self._exchange
        if exchange.claimed:
            exchange.response = exchange.settle(exchange.settle_raised(error))
        exchange.end_observation()
        if exchange.response is None or self._write is not None:
            raise error
        return _send_then_raise(self.send_own(exchange.response), error)

    def settle_stopped(self, error: BaseException) -> None:
        if self._exchange.claimed:
            self._exchange.settle(self._exchange.settle_stopped(error))

    def settle_passed(self) -> None:
        """An answer that passed through has ended, or its client disconnected."""
        if self._exchange.claimed:
            self._exchange.settle(self._exchange.release_flow())
        self._exchange.end_observation()

    # Helpers ------------------------------------------------------------------------------------------

    def _pass_unclaimed(self, result: Iterable[bytes]) -> Iterable[bytes]:
        exchange = self._exchange
        if exchange.response is not None:
            close_result(result)
            return self.send_own(exchange.response)
        return PassedResponse(self, iter(result), result) if exchange.observation_lease is not None else result

    def _collect_chunks(self, rest: Iterator[bytes]) -> bool:
        """Buffer the answer. False: from here on it passes through unbuffered."""
        exchange = self._exchange
        while True:
            if self._status_line and exchange.claimed and not self._passthrough and is_stream(self._headers):
                self._pass_through("stream")
            if self._passthrough or self._has_begun() or exchange.response is not None:
                return False
            chunk = next(rest, None)
            if chunk is None:
                return True
            if not exchange.claimed and self._has_begun():
                self._buffer.add(chunk)  # without a claim, and its first chunk started the answer
                return False
            if exchange.response is None and not self._buffer.add(chunk):
                self._pass_through("too_large")

    def _has_begun(self) -> bool:
        return self._write is not None

    def _iter_buffered(self) -> Iterator[bytes]:
        if self._write is None:
            self._start_server_response(self._status_line, self._headers)
        chunks, self._buffer = self._buffer.chunks, AnswerBuffer(0)
        yield from chunks

    def _settle_answer(self) -> Iterable[bytes]:
        exchange = self._exchange
        if not self._status_line:
            return self.settle_failed(RuntimeError("the application returned without calling start_response"))
        body = self._buffer.join()
        instead = exchange.settle_answer(_parse_status(self._status_line), self._headers, body)
        if instead is not None:
            exchange.response = instead
            return self.send_own(instead)
        self._start_server_response(self._status_line, self._headers)
        return [body]

    def _pass_through(self, gone: Literal["stream", "too_large"]) -> None:
        """The answer cannot be kept. Store the tombstone before the first byte is sent."""
        exchange, code = self._exchange, _parse_status(self._status_line)
        if not exchange.is_storable(code):
            self._passthrough = "not final"
            return
        exchange.response = exchange.settle(exchange.settle_tombstone(code, gone))
        self._passthrough = "settled"

    def _start_server_response(self, line: str, headers: HeaderPairs, exc_info: Any = None) -> Write:
        self._exchange.started = True
        sent_headers = [*headers, *self._exchange.extra_headers()]
        self._write = (
            self._start_response(line, sent_headers, exc_info) if exc_info else self._start_response(line, sent_headers)
        )
        return self._write


class PassedResponse:
    """An answer that passes through to the server chunk by chunk. `close` closes the application's result once."""

    def __init__(self, collector: AnswerCollector, chunks: Iterator[bytes], result: Iterable[bytes]) -> None:
        self._collector = collector
        self._chunks = chunks
        self._result: Iterable[bytes] | None = result

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._chunks)

    def close(self) -> None:
        result, self._result = self._result, None
        if result is not None:
            try:
                close_result(result)
            finally:
                self._collector.settle_passed()


def transmit(start_response: StartResponse, response: Response) -> Iterable[bytes]:
    try:
        reason = HTTPStatus(response.status).phrase
    except ValueError:
        reason = "Unknown"
    start_response(f"{response.status} {reason}", list(response.headers))
    return [response.body]


def close_result(result: Iterable[bytes]) -> None:
    closing = getattr(result, "close", None)
    if closing is not None:
        closing()


def _send_then_raise(chunks: Iterable[bytes], error: Exception) -> Iterator[bytes]:
    yield from chunks
    raise error


def _parse_status(line: str) -> int:
    return int(line[:3])


def _discard(data: bytes) -> None:
    """The `write` of an application whose answer is not sent: the exchange has its own."""
