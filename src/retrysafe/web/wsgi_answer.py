"""The application's answer under WSGI: taken whole, stored, then handed to the server."""

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
    """Stands between the application and the server's `start_response`."""

    def __init__(self, exchange: SyncExchange, start_response: StartResponse) -> None:
        self._exchange = exchange
        self._start_response = start_response
        self._buffer = AnswerBuffer(exchange.policy.max_answer)
        self._line = ""
        self._headers: HeaderPairs = ()
        self._passes: Literal["", "settled", "not final"] = ""
        self._write: Write | None = None

    # What the application calls -------------------------------------------------------------------

    def start_response(self, line: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Write:
        exchange = self._exchange
        if self._write is not None:  # it has gone out: the server raises the error on, or complains
            return self._start_response(line, headers, exc_info)
        if exchange.response is not None:
            return _discard
        if not exchange.claimed:
            if exchange.refuse_if_unprotected(_parse_status(line)):
                return _discard
            return self._start_server_response(line, headers, exc_info)
        if self._line and exc_info is None:
            raise AssertionError("start_response was called twice without exc_info")
        self._line, self._headers = line, check_headers(list(headers))
        self._buffer = AnswerBuffer(exchange.policy.max_answer)  # what an error page replaces is not part of the answer
        return self._write_legacy

    def _write_legacy(self, data: bytes) -> None:
        """The `write` of old applications: its bytes come before those that are returned."""
        if self._exchange.response is not None:
            return
        if self._write is not None:
            self._write(data)
        elif not self._buffer.add(data):
            self._pass_through("too_large")
            if self._exchange.response is None:
                write = self._start_server_response(self._line, self._headers)
                for chunk in self._buffer.chunks:
                    write(chunk)
                self._buffer = AnswerBuffer(0)

    # What the middleware calls --------------------------------------------------------------------

    def collect(self, result: Iterable[bytes]) -> Iterable[bytes]:
        """The application returned: run it to its end, unless its answer passes by."""
        exchange = self._exchange
        if not exchange.claimed and (self._write is not None or exchange.response is not None):
            return self._pass_unclaimed(result)
        rest = iter(result)
        try:
            over = self._collect_chunks(rest)
        except BaseException:
            close_result(result)
            raise
        if exchange.response is not None:
            close_result(result)
            return self.send_own(exchange.response)
        if not over:
            return PassedResponse(self, chain(self._iter_buffered(), rest), result)
        if not exchange.claimed:
            return PassedResponse(self, iter(self._buffer.chunks), result)
        close_result(result)
        return self._settle_answer()

    def send_own(self, response: Response) -> Iterable[bytes]:
        if self._exchange.rolled_back:
            return ()  # another run's answer will be the one
        return transmit(self._start_response, response.with_headers(*self._exchange.extra_headers()))

    def settle_failed(self, error: Exception) -> Iterable[bytes]:
        """The application raised. If it had not answered, ours is the answer, and the error follows it."""
        exchange = self._exchange
        if exchange.claimed:
            exchange.response = exchange.settle(exchange.settle_raised(error))
        exchange.end_observation()
        if exchange.response is None or self._write is not None:
            raise error
        return _then_raise(self.send_own(exchange.response), error)

    def settle_stopped(self, error: BaseException) -> None:
        if self._exchange.claimed:
            self._exchange.settle(self._exchange.settle_stopped(error))

    def settle_passed(self) -> None:
        """An answer that passed by is over, or its client left."""
        if self._exchange.claimed:
            self._exchange.settle(self._exchange.release_flow())
        self._exchange.end_observation()

    # How ------------------------------------------------------------------------------------------

    def _pass_unclaimed(self, result: Iterable[bytes]) -> Iterable[bytes]:
        exchange = self._exchange
        if exchange.response is not None:
            close_result(result)
            return self.send_own(exchange.response)
        return PassedResponse(self, iter(result), result) if exchange.observed is not None else result

    def _collect_chunks(self, rest: Iterator[bytes]) -> bool:
        """Gather the answer. False: it passes by from here on."""
        exchange = self._exchange
        while True:
            if self._line and exchange.claimed and not self._passes and is_stream(self._headers):
                self._pass_through("stream")
            if self._passes or self._has_begun() or exchange.response is not None:
                return False
            chunk = next(rest, None)
            if chunk is None:
                return True
            if not exchange.claimed and self._has_begun():
                self._buffer.add(chunk)  # it began to answer, without a claim, with this very piece
                return False
            if exchange.response is None and not self._buffer.add(chunk):
                self._pass_through("too_large")

    def _has_begun(self) -> bool:
        return self._write is not None

    def _iter_buffered(self) -> Iterator[bytes]:
        if self._write is None:
            self._start_server_response(self._line, self._headers)
        chunks, self._buffer = self._buffer.chunks, AnswerBuffer(0)
        yield from chunks

    def _settle_answer(self) -> Iterable[bytes]:
        exchange = self._exchange
        if not self._line:
            return self.settle_failed(RuntimeError("the application returned without calling start_response"))
        body = self._buffer.join()
        instead = exchange.settle(exchange.settle_answered(_parse_status(self._line), self._headers, body))
        if instead is not None:
            exchange.response = instead
            return self.send_own(instead)
        self._start_server_response(self._line, self._headers)
        return [body]

    def _pass_through(self, gone: Literal["stream", "too_large"]) -> None:
        """It cannot be kept. First the fact that it happened, then the bytes."""
        exchange, code = self._exchange, _parse_status(self._line)
        if not exchange.is_storable(code):
            self._passes = "not final"
            return
        exchange.response = exchange.settle(exchange.settle_tombstone(code, gone))
        self._passes = "settled"

    def _start_server_response(self, line: str, headers: HeaderPairs, exc_info: Any = None) -> Write:
        self._exchange.started = True
        told = [*headers, *self._exchange.extra_headers()]
        self._write = self._start_response(line, told, exc_info) if exc_info else self._start_response(line, told)
        return self._write


class PassedResponse:
    """An answer that goes to the server piece by piece. `close` reaches the application's result exactly once."""

    def __init__(self, taker: AnswerCollector, chunks: Iterator[bytes], result: Iterable[bytes]) -> None:
        self._taker = taker
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
                self._taker.settle_passed()


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


def _then_raise(chunks: Iterable[bytes], error: Exception) -> Iterator[bytes]:
    yield from chunks
    raise error


def _parse_status(line: str) -> int:
    return int(line[:3])


def _discard(data: bytes) -> None:
    """The answer is already decided."""
