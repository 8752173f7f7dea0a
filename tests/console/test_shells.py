"""The console mounted in FastAPI, Flask and Django, and as a bare ASGI and WSGI application."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask

from retrysafe import RetrySafe
from retrysafe.console import Console, ConsoleRequest, Operator
from retrysafe.console.asgi import take_mount_away
from retrysafe.console.messages import MAX_BODY_BYTES
from retrysafe.core.ops import Lookup
from retrysafe.core.states import State
from retrysafe.fastapi import install
from tests.console.conftest import World


def by_header(request: ConsoleRequest) -> Operator | None:
    name = request.headers.get("x-user")
    return Operator(name) if name else None


@pytest.fixture
def console(world: World) -> Console:
    return Console(world.safe, authenticate=by_header, actions=True)


def make_fastapi(console: Console) -> Any:
    app = FastAPI()

    @app.get("/hello")
    def hello() -> str:
        return "hello"

    app.mount("/ops", console.asgi)
    return httpx.ASGITransport(app)


def make_protected(console: Console) -> Any:
    """Below a middleware that asks every other POST for a key."""
    app = FastAPI()

    @app.api_route("/hello", methods=["GET", "POST"])
    def hello() -> str:
        return "hello"

    app.mount("/ops", console.asgi)
    install(app, safe=console.safe, scope=lambda view: "me", routes={"POST /ops/{rest:path}": None})
    return httpx.ASGITransport(app)


def make_flask(console: Console) -> Any:
    app = Flask("shop")
    app.add_url_rule("/hello", view_func=lambda: "hello")
    app.wsgi_app = console.mount_wsgi(app.wsgi_app, "/ops")  # type: ignore[method-assign]
    return httpx.WSGITransport(app)


class Caller:
    """One client for both transports."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._cookies: dict[str, str] = {}

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        import asyncio

        headers = {"x-user": "ann", **options.pop("headers", {})}
        if isinstance(self._transport, httpx.WSGITransport):
            with httpx.Client(transport=self._transport, base_url="http://shop.test", cookies=self._cookies) as client:
                response = client.request(method, path, headers=headers, **options)
                self._cookies |= dict(client.cookies)
            return response

        async def call() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=self._transport, base_url="http://shop.test", cookies=self._cookies
            ) as client:
                response = await client.request(method, path, headers=headers, **options)
                self._cookies |= dict(client.cookies)
                return response

        return asyncio.run(call())


@pytest.mark.parametrize(
    "make", [make_fastapi, make_protected, make_flask], ids=["fastapi", "fastapi-with-keys", "flask"]
)
def test_mounted_it_shows_and_acts(world: World, console: Console, make: Any) -> None:
    call = Caller(make(console))
    assert call("GET", "/hello").status_code == 200, "the application is still there"
    assert call("GET", "/ops/keys", headers={"x-user": ""}).status_code == 401
    page = call("GET", "/ops/keys?state=uncertain")
    assert (page.status_code, "order-7" in page.text) == (200, True)
    assert 'href="/ops/keys/' in page.text
    assert call("GET", "/ops/static/console.css").headers["content-type"].startswith("text/css")
    token = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    fields = {"csrf": token, "because": "the bank says no", "outcome": "did-not-happen"}
    fields |= {"attempt": "1", "began": str(world.uncertain.started)}
    path = f"/ops/keys/{world.uncertain.id.hex()}"
    done = call("POST", f"{path}/resolve", data=fields, headers={"origin": "http://shop.test"})
    assert done.status_code == 303, done.text
    assert done.headers["location"].startswith(f"{path}?did=")
    after = world.safe.store.execute(Lookup(world.uncertain.id)).record
    assert after is not None
    assert after.state is State.RELEASED
    large = call("POST", f"{path}/resolve", content=b"x" * (MAX_BODY_BYTES + 1), headers={"origin": "http://shop.test"})
    assert large.status_code == 413


@pytest.mark.parametrize("make", [make_fastapi, make_flask], ids=["fastapi", "flask"])
def test_the_root_of_a_mount_is_the_page_now(world: World, console: Console, make: Any) -> None:
    assert "Uncertain" in Caller(make(console))("GET", "/ops/").text


async def test_the_lifespan_of_a_bare_application_is_answered(console: Console) -> None:
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await console.asgi({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    with pytest.raises(RuntimeError, match="websocket"):
        await console.asgi({"type": "websocket"}, receive, send)


def test_a_length_that_is_no_number_is_refused(console: Console) -> None:
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "CONTENT_LENGTH": "x", "wsgi.input": io.BytesIO()}
    seen: list[str] = []
    list(console.wsgi(environ, lambda status, headers: seen.append(status)))
    assert seen == ["400 Bad Request"]


def test_a_body_that_the_server_cannot_read_is_refused(console: Console) -> None:
    """It was a failure of the application: a server says by an error of its own that the client went away."""

    class Broken:
        def read(self, size: int) -> bytes:
            raise RuntimeError("invalid chunk")

    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/bulk", "CONTENT_LENGTH": "5", "wsgi.input": Broken()}
    told: list[str] = []
    console.wsgi(environ, lambda status, headers: told.append(status))
    assert told == ["400 Bad Request"]


def test_a_console_closes_nothing_of_the_application(tmp_path: Path) -> None:
    with RetrySafe(f"sqlite:///{tmp_path}/x.db") as safe:
        safe.migrate()
        Console(safe, authenticate=by_header).handle(ConsoleRequest("GET", "/", headers={"x-user": "ann"}))
        assert safe.store.execute(Lookup(bytes(32))).record is None


@pytest.mark.parametrize("path", ["/ops/keys", "/api/ops/keys"], ids=["taken away", "passed on"])
def test_behind_a_proxy_with_a_prefix(console: Console, path: str) -> None:
    """A proxy that takes its prefix away leaves only the end of the mount in the path: every page was a 404."""
    app = FastAPI()
    app.mount("/ops", console.asgi)
    page = Caller(httpx.ASGITransport(app, root_path="/api"))("GET", path)
    assert (page.status_code, 'href="/api/ops/keys"' in page.text) == (200, True)


@pytest.mark.parametrize(
    ("path", "mount", "proxied", "wanted"),
    [
        ("/ops/keys", "/ops", "", "/keys"), ("/ops", "/ops", "", "/"), ("/keys", "/ops", "", "/keys"),
        ("/", "", "", "/"), ("", "", "", "/"), ("/opsy/keys", "/ops", "", "/opsy/keys"),
        ("/api/ops/keys", "/api/ops", "/api", "/keys"), ("/ops/keys", "/api/ops", "/api", "/keys"),
        ("/ops", "/api/ops", "/api", "/"), ("/keys", "/api", "/api", "/keys"), ("/api/keys", "/api", "/api", "/keys"),
    ],
)  # fmt: skip
def test_the_mount_is_taken_away_once(path: str, mount: str, proxied: str, wanted: str) -> None:
    assert take_mount_away(path, mount, proxied) == wanted
