"""The WSGI middleware under a strict server: bugs of similar packages, and rarely used parts of PEP 3333."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from retrysafe import Policy, current_lease
from retrysafe.core.ops import Claim, Complete
from retrysafe.core.problem_names import problem_name
from retrysafe.core.states import State
from retrysafe.errors import UsageError
from retrysafe.testing.faults import Fault
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.exchange_context import ResponseReady, current_exchange
from retrysafe.web.wsgi import IdempotencyMiddleware
from tests.web.unit.harness import Strict, World, WsgiCall, who


class App:
    """Answers in chunks, counts its calls, and records how its result is used."""

    def __init__(self, *pieces: bytes, status: str = "201 Created", headers: Any = ()) -> None:
        self.runs = self.closed = 0
        self.pieces = pieces or (b"made ", b"it")
        self.status, self.headers = status, list(headers)

    def __call__(self, environ: Any, start_response: Any) -> App:
        self.runs += 1
        self._left = iter(self.pieces)
        start_response(self.status, self.headers)
        return self

    def __iter__(self) -> App:
        return self

    def __next__(self) -> bytes:
        assert not self.closed, "iterated after close"
        return next(self._left)

    def close(self) -> None:
        self.closed += 1


def problem_of(call: WsgiCall) -> str:
    kind: str = json.loads(call.body)["type"]
    return problem_name(kind)


def protected(app: Any, world: World | None = None, **more: Any) -> IdempotencyMiddleware:
    return IdempotencyMiddleware(app, safe=(world or World()).safe, scope=more.pop("scope", who), **more)


def test_first_and_replay_and_close_exactly_once() -> None:
    app = App()
    middleware = protected(app)
    first = WsgiCall(middleware)
    assert (first.status, first.body, app.closed) == (201, b"made it", 1)
    again = WsgiCall(middleware)
    assert (again.status, again.body) == (201, b"made it")
    assert dict(again.headers)["idempotent-replayed"] == "true"
    assert (app.runs, app.closed) == (1, 1)


@pytest.mark.parametrize("size", [10, 11, 3_000_000])
def test_a_large_generator_arrives_whole(size: int) -> None:
    """A bug of a similar package: the result was closed and then iterated; 3 MiB became 1.5."""
    app = App(b"x" * (size // 2), b"y" * (size - size // 2))
    middleware = protected(app, policy=Policy(max_answer=10))
    assert len(WsgiCall(middleware).body) == size
    assert app.closed == 1
    again = WsgiCall(middleware)
    assert again.body == b"xxxxxyyyyy" if size == 10 else problem_of(again) == "answer-gone"
    assert app.runs == 1


def test_bytes_of_write_are_part_of_the_answer() -> None:
    """A bug of a similar package: they were dropped."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        write(b"first ")
        write(b"second ")
        return [b"third"]

    for limit in (100, 8):
        middleware = protected(app, policy=Policy(max_answer=limit))
        assert WsgiCall(middleware).body == b"first second third"
    assert WsgiCall(protected(app, policy=Policy())).body == b"first second third"


def test_an_error_page_replaces_what_was_begun() -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [("X-A", "1")])
        try:
            raise RuntimeError("late")
        except RuntimeError:
            start_response("502 Bad Gateway", [("X-B", "2")], sys.exc_info())
        return [b"sorry"]

    middleware = protected(app)
    for call in (WsgiCall(middleware), WsgiCall(middleware)):
        assert (call.status, call.body) == (502, b"sorry")
        assert "X-A" not in dict(call.headers)


def test_a_generator_that_starts_late_works() -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        yield b"late"

    middleware = protected(app)
    assert WsgiCall(middleware).body == WsgiCall(middleware).body == b"late"


def test_the_input_is_never_read_beyond_its_length() -> None:
    """A bug of a similar package: wsgiref and Flask's server hang there. `Strict` fails instead."""
    got: list[bytes] = []

    def app(environ: Any, start_response: Any) -> Any:
        got.append(environ["wsgi.input"].read())
        start_response("200 OK", [])
        return []

    for scope in (who, None):
        WsgiCall(IdempotencyMiddleware(app, safe=World().safe, scope=scope), b"hello")
    WsgiCall(protected(app), b"", CONTENT_LENGTH="")
    assert got == [b"hello", b"hello", b""]


def test_a_body_without_a_length_is_read_where_the_server_ends_it() -> None:
    got: list[Any] = []

    def app(environ: Any, start_response: Any) -> Any:
        got.append(list(environ["wsgi.input"]))
        start_response("200 OK", [])
        return []

    stream: dict[str, Any] = {"wsgi.input": io.BytesIO(b"a\nb"), "wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
    WsgiCall(protected(app), **stream)
    assert got == [[b"a\n", b"b"]]


@pytest.mark.parametrize(
    ("environ", "status", "kind"),
    [
        ({"CONTENT_LENGTH": "11"}, 413, "too-large"),
        ({"CONTENT_LENGTH": "-1"}, 400, "unreadable-body"),
        ({"CONTENT_LENGTH": "two"}, 400, "unreadable-body"),
        ({"CONTENT_LENGTH": "5", "wsgi.input": io.BytesIO(b"123")}, 400, "unreadable-body"),
        ({"CONTENT_LENGTH": "", "wsgi.input_terminated": True, "wsgi.input": io.BytesIO(bytes(11))}, 413, "too-large"),
    ],
    ids=["declared", "negative", "not a number", "cut off", "undeclared"],
)
def test_bodies_that_are_refused_claim_nothing(environ: Any, status: int, kind: str) -> None:
    world, app = World(), App()
    told = WsgiCall(protected(app, world, policy=Policy(max_body=10)), b"x" * 11, **environ)
    assert (told.status, problem_of(told)) == (status, kind)
    assert (app.runs, world.script.calls) == (0, 0)


def test_an_unclaimed_large_body_is_the_applications_as_it_comes() -> None:
    got: list[bytes] = []

    def app(environ: Any, start_response: Any) -> Any:
        stream = environ["wsgi.input"]
        got.extend([stream.readline(), stream.read(4), stream.read()])
        start_response("200 OK", [])
        return []

    body = b"line\n" + bytes(50)
    stream: dict[str, Any] = {"wsgi.input": io.BytesIO(body), "wsgi.input_terminated": True, "CONTENT_LENGTH": ""}
    WsgiCall(IdempotencyMiddleware(app, safe=World().safe, policy=Policy(max_body=10)), **stream)
    assert b"".join(got) == body


def test_two_header_lines_joined_by_the_server_are_refused() -> None:
    app = App()
    for joined in ("a,b", "a, b", '"a","b"', ""):
        assert WsgiCall(protected(app), key=joined).status == 400
    assert app.runs == 0


def test_an_uncaught_error_is_answered_stored_and_raised_on() -> None:
    def app(environ: Any, start_response: Any) -> Any:
        raise RuntimeError("boom")

    middleware = protected(app)
    first, again = WsgiCall(middleware), WsgiCall(middleware)
    assert isinstance(first.error, RuntimeError)
    assert again.error is None
    assert (first.status, first.body) == (again.status, again.body)
    assert b"boom" not in first.body


def test_an_error_while_iterating_closes_and_answers() -> None:
    class Broken(App):
        def __next__(self) -> bytes:
            raise RuntimeError("boom")

    app = Broken()
    told = WsgiCall(protected(app))
    assert told.status == 500
    assert isinstance(told.error, RuntimeError)
    assert app.closed == 1


def test_an_application_that_never_starts_has_failed() -> None:
    assert WsgiCall(protected(lambda environ, start_response: [])).status == 500


def test_the_end_of_the_process_is_written_down() -> None:
    def app(environ: Any, start_response: Any) -> Any:
        raise SystemExit

    world = World()
    with pytest.raises(SystemExit):
        WsgiCall(protected(app, world))
    assert world.records[0].state is State.UNCERTAIN


@pytest.mark.parametrize(("fault", "status", "kind", "runs"), [
    (Fault(1, "before", only=Claim, lasting=True), 503, "store-unavailable", 0),
    (Fault(1, "before", only=Complete, lasting=True), 500, "outcome-unrecorded", 1),
])  # fmt: skip
def test_store_down(fault: Fault, status: int, kind: str, runs: int) -> None:
    world, app = World(fault), App()
    told = WsgiCall(protected(app, world))
    assert (told.status, problem_of(told), app.runs) == (status, kind, runs)


def test_a_route_that_asks_is_protected() -> None:
    seen: list[Any] = []

    def app(environ: Any, start_response: Any) -> Any:
        assert current_exchange() is environ[EXCHANGE]
        environ[EXCHANGE].claim("alice")
        seen.append(current_lease())
        start_response("201 Created", [])
        return [b"done"]

    middleware = IdempotencyMiddleware(app, safe=World().safe)
    first, again = WsgiCall(middleware), WsgiCall(middleware)
    assert first.body == again.body == b"done"
    assert len(seen) == 1
    assert seen[0] is not None
    assert (current_exchange(), current_lease()) == (None, None), "nothing stays behind in the thread"


def test_what_the_application_makes_of_a_shortcut_is_discarded() -> None:
    def app(environ: Any, start_response: Any) -> Any:
        try:
            environ[EXCHANGE].claim("alice")
        except ResponseReady:
            start_response("418 I'm a teapot", [])(b"my own")
            return [b"page"]
        start_response("201 Created", [])
        return [b"done"]

    middleware = IdempotencyMiddleware(app, safe=World().safe)
    assert WsgiCall(middleware).body == WsgiCall(middleware).body == b"done"


def test_a_listed_route_that_never_asks_is_a_configuration_error() -> None:
    app = App()
    told = WsgiCall(IdempotencyMiddleware(app, safe=World().safe, routes={"POST /pay": Policy()}))
    assert (told.status, problem_of(told)) == (500, "unprotected")
    assert app.closed == 1


def test_what_is_not_protected_gets_the_very_same_objects() -> None:
    given: list[Any] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        given.extend([environ, start_response])
        return result

    result: list[bytes] = []
    policy = Policy(mode="optional")
    for method in ({"REQUEST_METHOD": "GET"}, {"REQUEST_METHOD": "POST"}):
        environ: dict[str, Any] = {**method, "PATH_INFO": "/pay", "wsgi.input": Strict()}
        start = object()
        assert protected(app, policy=policy)(environ, start) is result  # type: ignore[arg-type]  # only passed on
        assert given[-2] is environ
        assert given[-1] is start
        assert EXCHANGE not in environ


def test_an_async_scope_is_refused() -> None:
    async def scope(request: Any) -> str:
        return "alice"

    with pytest.raises(UsageError, match="await"):
        protected(App(), scope=scope)
