"""The application's answer under WSGI: taken whole, stored, then handed to the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from itertools import chain
from typing import Any, Literal

from retrysafe.web.capture import Buffer, Pairs, Response, checked, is_stream
from retrysafe.web.colours import SyncExchange

Environ = dict[str, Any]
Write = Callable[[bytes], object]
StartResponse = Callable[..., Write]
WSGIApp = Callable[[Environ, StartResponse], Iterable[bytes]]


class AnswerTaker:
    """Stands between the application and the server's `start_response`."""

    def __init__(self, exchange: SyncExchange, start_response: StartResponse) -> None:
        self._exchange = exchange
        self._start_response = start_response
        self._buffer = Buffer(exchange.policy.max_answer)
        self._line = ""
        self._headers: Pairs = ()
        self._passes: Literal["", "settled", "not final"] = ""
        self._write: Write | None = None

    # What the application calls -------------------------------------------------------------------

    def start_response(self, line: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Write:
        exchange = self._exchange
        if self._write is not None:  # it has gone out: the server raises the error on, or complains
            return self._start_response(line, headers, exc_info)
        if exchange.response is not None:
            return _nowhere
        if not exchange.claimed:
            if exchange.unprotected(_code(line)):
                return _nowhere
            return self._begin(line, headers, exc_info)
        if self._line and exc_info is None:
            raise AssertionError("start_response was called twice without exc_info")
        self._line, self._headers = line, checked(list(headers))
        self._buffer = Buffer(exchange.policy.max_answer)  # what an error page replaces is not part of the answer
        return self._written

    def _written(self, data: bytes) -> None:
        """The `write` of old applications: its bytes come before those that are returned."""
        if self._exchange.response is not None:
            return
        if self._write is not None:
            self._write(data)
        elif not self._buffer.add(data):
            self._let_pass("too_large")
            if self._exchange.response is None:
                write = self._begin(self._line, self._headers)
                for chunk in self._buffer.chunks:
                    write(chunk)
                self._buffer = Buffer(0)

    # What the middleware calls --------------------------------------------------------------------

    def take(self, result: Iterable[bytes]) -> Iterable[bytes]:
        """The application returned: run it to its end, unless its answer passes by."""
        exchange = self._exchange
        if not exchange.claimed and (self._write is not None or exchange.response is not None):
            return self._unclaimed(result)
        rest = iter(result)
        try:
            over = self._collected(rest)
        except BaseException:
            close(result)
            raise
        if exchange.response is not None:
            close(result)
            return self.own(exchange.response)
        if not over:
            return Passing(self, chain(self._started_chunks(), rest), result)
        if not exchange.claimed:
            return Passing(self, iter(self._buffer.chunks), result)
        close(result)
        return self._whole()

    def own(self, response: Response) -> Iterable[bytes]:
        if self._exchange.undone:
            return ()  # another run's answer will be the one
        return transmit(self._start_response, response.plus(*self._exchange.extra_headers()))

    def failed(self, error: Exception) -> Iterable[bytes]:
        """The application raised. If it had not answered, ours is the answer, and the error follows it."""
        exchange = self._exchange
        if exchange.claimed:
            exchange.response = exchange.settle(exchange.raised(error))
        exchange.observed_end()
        if exchange.response is None or self._write is not None:
            raise error
        return _then_raise(self.own(exchange.response), error)

    def stopped(self, error: BaseException) -> None:
        if self._exchange.claimed:
            self._exchange.settle(self._exchange.stopped(error))

    def ended(self) -> None:
        """An answer that passed by is over, or its client left."""
        if self._exchange.claimed:
            self._exchange.settle(self._exchange.let_go())
        self._exchange.observed_end()

    # How ------------------------------------------------------------------------------------------

    def _unclaimed(self, result: Iterable[bytes]) -> Iterable[bytes]:
        exchange = self._exchange
        if exchange.response is not None:
            close(result)
            return self.own(exchange.response)
        return Passing(self, iter(result), result) if exchange.observed is not None else result

    def _collected(self, rest: Iterator[bytes]) -> bool:
        """Gather the answer. False: it passes by from here on."""
        exchange = self._exchange
        while True:
            if self._line and exchange.claimed and not self._passes and is_stream(self._headers):
                self._let_pass("stream")
            if self._passes or self._begun() or exchange.response is not None:
                return False
            chunk = next(rest, None)
            if chunk is None:
                return True
            if not exchange.claimed and self._begun():
                self._buffer.add(chunk)  # it began to answer, without a claim, with this very piece
                return False
            if exchange.response is None and not self._buffer.add(chunk):
                self._let_pass("too_large")

    def _begun(self) -> bool:
        return self._write is not None

    def _started_chunks(self) -> Iterator[bytes]:
        if self._write is None:
            self._begin(self._line, self._headers)
        chunks, self._buffer = self._buffer.chunks, Buffer(0)
        yield from chunks

    def _whole(self) -> Iterable[bytes]:
        exchange = self._exchange
        if not self._line:
            return self.failed(RuntimeError("the application returned without calling start_response"))
        body = self._buffer.joined()
        instead = exchange.settle(exchange.answered(_code(self._line), self._headers, body))
        if instead is not None:
            exchange.response = instead
            return self.own(instead)
        self._begin(self._line, self._headers)
        return [body]

    def _let_pass(self, gone: Literal["stream", "too_large"]) -> None:
        """It cannot be kept. First the fact that it happened, then the bytes."""
        exchange, code = self._exchange, _code(self._line)
        if not exchange.storable(code):
            self._passes = "not final"
            return
        exchange.response = exchange.settle(exchange.tombstone(code, gone))
        self._passes = "settled"

    def _begin(self, line: str, headers: Pairs, exc_info: Any = None) -> Write:
        self._exchange.started = True
        told = [*headers, *self._exchange.extra_headers()]
        self._write = self._start_response(line, told, exc_info) if exc_info else self._start_response(line, told)
        return self._write


class Passing:
    """An answer that goes to the server piece by piece. `close` reaches the application's result exactly once."""

    def __init__(self, taker: AnswerTaker, chunks: Iterator[bytes], result: Iterable[bytes]) -> None:
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
                close(result)
            finally:
                self._taker.ended()


def transmit(start_response: StartResponse, response: Response) -> Iterable[bytes]:
    try:
        reason = HTTPStatus(response.status).phrase
    except ValueError:
        reason = "Unknown"
    start_response(f"{response.status} {reason}", list(response.headers))
    return [response.body]


def close(result: Iterable[bytes]) -> None:
    closing = getattr(result, "close", None)
    if closing is not None:
        closing()


def _then_raise(chunks: Iterable[bytes], error: Exception) -> Iterator[bytes]:
    yield from chunks
    raise error


def _code(line: str) -> int:
    return int(line[:3])


def _nowhere(data: bytes) -> None:
    """The answer is already decided."""
