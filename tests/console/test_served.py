"""Under real servers, with our own bytes on the wire: forms that are cut, paths and methods that no browser sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
import uvicorn

from retrysafe.console import Console, Operator
from retrysafe.core.ops import Lookup
from tests.console.conftest import World
from tests.console.test_actions import fields

TOKEN = "t" * 43
SECURE = (
    "content-security-policy: ", "x-content-type-options: nosniff", "x-frame-options: deny", "cache-control: ",
    "referrer-policy: same-origin",
)  # fmt: skip
WAIT_SECONDS = 30.0


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve_wsgi(console: Console) -> Iterator[int]:
    with make_server("127.0.0.1", 0, console.wsgi, handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serve_asgi(console: Console) -> Iterator[int]:
    server = uvicorn.Server(uvicorn.Config(console.asgi, port=0, log_level="error", lifespan="off"))
    bound = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


@pytest.fixture(params=[serve_asgi, serve_wsgi], ids=["asgi", "wsgi"])
def port(request: pytest.FixtureRequest, world: World) -> Iterator[int]:
    console = Console(world.safe, authenticate=lambda request: Operator("ann"), actions=True)
    with request.param(console) as port:
        yield port


def exchange(port: int, sent: bytes, *, finished: bool = True) -> str:
    """Send these bytes and read the answer. Not `finished`: leave in the middle."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS) as connection:
        connection.sendall(sent)
        if not finished:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := _receive(connection):
            received += part
        return received.decode("latin-1").lower()


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:  # the server did not read all of it
        return b""


def head(line: str, *headers: str) -> bytes:
    whole = (line, "Host: 127.0.0.1", "Connection: close", f"Cookie: retrysafe_console_csrf={TOKEN}", *headers)
    return "\r\n".join((*whole, "", "")).encode("latin-1")


def post(path: str, body: bytes, length: int) -> bytes:
    return head(
        f"POST {path} HTTP/1.1", "Origin: http://127.0.0.1", f"Content-Length: {length}",
        "Content-Type: application/x-www-form-urlencoded",
    ) + body  # fmt: skip


def test_a_form_that_is_cut_is_not_obeyed(world: World, port: int) -> None:
    """Its first fields are those of a whole form. The answer that retries get came last, and was cut. It is no JSON: a
    cut one is refused anyway."""
    answer = {"outcome": "happened", "with_answer": "1", "status": "200", "content_type": "text/plain"}
    sent = {"csrf": TOKEN, **fields(world.uncertain, **answer), "answer": "the charge is ch_1234567890"}
    body, path = urlencode(sent).encode(), f"/keys/{world.uncertain.id.hex()}/resolve"
    exchange(port, post(path, body[:-10], len(body)), finished=False)
    after = world.safe.store.execute(Lookup(world.uncertain.id)).record
    assert after == world.uncertain
    assert "303" in exchange(port, post(path, body, len(body))).partition("\r\n")[0], "the whole form is"
    after = world.safe.store.execute(Lookup(world.uncertain.id)).record
    assert after is not None
    assert after.answer is not None
    assert after.answer.body == b"the charge is ch_1234567890"


LINES = (
    "GET /keys?scope=%00&key=%ff HTTP/1.1", "GET /keys/%2e%2e/%2e%2e/etc/passwd HTTP/1.1",
    "GET /static/..%2f..%2fconsole.py HTTP/1.1", "GET /%252e%252e/ HTTP/1.1", "GET //evil.test/ HTTP/1.1",
    "GET /keys/\xff\xfe HTTP/1.1", "HEAD / HTTP/1.1", "OPTIONS /keys HTTP/1.1", "TRACE / HTTP/1.1", "BREW / HTTP/1.1",
    f"GET /keys?key={'x' * 20_000} HTTP/1.1", "PUT /keys HTTP/1.1",
)  # fmt: skip


def test_what_no_browser_sends_is_answered_with_all_headers(world: World, port: int) -> None:
    large = post("/bulk", b"x" * 600_000, 600_000)
    for sent in (*(head(line) for line in LINES), large):
        received = exchange(port, sent)
        status = received.split(" ", 2)[1] if received else ""
        if not received or ("server: uvicorn" in received and "x-frame-options" not in received and status == "400"):
            continue  # the server itself refused what is no HTTP
        assert status in ("200", "400", "403", "404", "413"), (sent[:60], received[:200])
        assert [each for each in SECURE if each not in received.partition("\r\n\r\n")[0]] == [], (sent[:60], received)
        assert "root:" not in received
        assert "location: " not in received


def test_a_large_form_is_not_read_to_its_end(world: World, port: int) -> None:
    """However its length is said: by a number, or by pieces that go on."""
    declared = exchange(port, post("/bulk", b"because=" + b"x" * 600_000, 600_008))
    assert declared.split(" ", 2)[1] == "413"
    lines = ("Origin: http://127.0.0.1", "Transfer-Encoding: chunked")
    piece = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
    received = exchange(port, head("POST /bulk HTTP/1.1", *lines) + piece * 20 + b"0\r\n\r\n")
    # wsgiref reads no pieces: its form is empty, and has no token.
    assert received.split(" ", 2)[1] == ("403" if "server: wsgiserver" in received else "413")


@pytest.mark.parametrize("name", ["Origin: http://{}", "Sec-Fetch-Site: {}"])
def test_of_two_origins_none_is_ours(world: World, port: int, name: str) -> None:
    """The last one counted on ASGI. A browser sends one; a proxy may add another."""
    other, own = ("cross-site", "same-origin") if "Site" in name else ("evil.test", "127.0.0.1")
    sent = {"csrf": TOKEN, **fields(world.uncertain, outcome="happened")}
    body, path = urlencode(sent).encode(), f"/keys/{world.uncertain.id.hex()}/resolve"
    for pair in ((other, own), (own, other), (own, own)):
        headers = (*(name.format(each) for each in pair), f"Content-Length: {len(body)}")
        received = exchange(port, head(f"POST {path} HTTP/1.1", *headers) + body)
        assert received.split(" ", 2)[1] in ("400", "403")
    assert world.safe.store.execute(Lookup(world.uncertain.id)).record == world.uncertain


def test_an_answer_without_a_body_says_no_wrong_length(world: World, port: int) -> None:
    """RFC 9110, 8.6: the length of HEAD is that of GET, and a 304 has none or the same."""
    asked, looked = (exchange(port, head(f"{method} /static/console.css HTTP/1.1")) for method in ("GET", "HEAD"))
    length = find_header(asked, "content-length")
    assert (int(length) > 1000, find_header(looked, "content-length")) == (True, length)
    assert looked.endswith("\r\n\r\n")
    etag = find_header(asked, "etag")
    for sent in (etag, f"W/{etag}", f'"other", {etag}', f'"other",W/{etag}'):
        same = exchange(port, head("GET /static/console.css HTTP/1.1", f"If-None-Match: {sent}"))
        assert same.split(" ", 2)[1] == "304", "a proxy that compresses has made it a weak one"
        by_itself = "0" if "server: wsgiserver" in same else ""  # wsgiref adds one to every answer
        assert find_header(same, "content-length") in (by_itself, length)
    part = exchange(port, head("GET /keys HTTP/1.1", "HX-Request: true"))
    again = exchange(
        port, head("GET /keys HTTP/1.1", "HX-Request: true", f"If-None-Match: W/{find_header(part, 'etag')}")
    )
    assert again.split(" ", 2)[1] == "304"


def find_header(received: str, name: str) -> str:
    lines = received.partition("\r\n\r\n")[0].split("\r\n")
    return next((line.partition(": ")[2] for line in lines if line.startswith(f"{name}: ")), "")
