"""The caller's request object is not changed: a copy is sent, and a redirect does not send the key to another host."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests

from retrysafe.client import Journal, Retries, operation, trail
from retrysafe.client.httpx import AsyncRetryTransport, RetryTransport
from retrysafe.client.requests import RetryAdapter
from retrysafe.client.unanswered import Destination, UnansweredByHooks, is_same_host
from tests.client.ambient import Virtual
from tests.client.faces import BROKEN, FACES
from tests.client.scripted import Drop, Reply, Script, serving

BODY = b'{"amount": 500}'
Send = Callable[[Any], Any]


class Session:
    """A client of either library that builds requests and sends them."""

    def __init__(self, face: str, build: Callable[..., Any], send: Send) -> None:
        self.face, self.build, self.send = face, build, send


@contextmanager
def opened(face: str, virtual: Virtual, *, auth: Any = None, **options: Any) -> Iterator[Session]:
    options = {"ambient": virtual.ambient(), **options}
    if face == "httpx":
        with httpx.Client(transport=RetryTransport(**options), follow_redirects=True, auth=auth) as client:
            yield Session(face, client.build_request, client.send)
    elif face == "async":
        with asyncio.Runner() as runner:
            one = httpx.AsyncClient(transport=AsyncRetryTransport(**options), follow_redirects=True, auth=auth)

            async def send(request: Any) -> Any:
                return await one.send(request)

            yield Session(face, one.build_request, lambda request: runner.run(send(request), context=copy_context()))
            runner.run(one.aclose())
    else:
        with requests.Session() as session:
            session.mount("http://", RetryAdapter(**options))

            def build(method: str, url: str, content: Any = None, headers: Any = None) -> Any:
                return session.prepare_request(requests.Request(method, url, data=content, headers=headers, auth=auth))

            yield Session(face, build, session.send)


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def other() -> Iterator[Script]:
    with serving() as script:
        yield script


# Sent twice ---------------------------------------------------------------------------------------


def test_a_request_that_was_answered_is_a_new_operation_when_it_is_sent_again(
    face: str, server: Script, virtual: Virtual
) -> None:
    with opened(face, virtual) as client:
        request = client.build("POST", f"{server.url}/payments", content=BODY)
        before = dict(request.headers)
        first, second = client.send(request), client.send(request)
    assert server.keys == ["key-1", "key-2"]
    assert dict(request.headers) == before
    logs = [trail(one) for one in (first, second)]
    assert [one.key for one in logs if one] == ["key-1", "key-2"]


@pytest.mark.parametrize("trouble", [[Drop("after")] * 2, [Reply(503)] * 2])
def test_a_request_that_was_not_answered_is_the_same_operation(
    face: str, server: Script, virtual: Virtual, trouble: Any
) -> None:
    server.then(*trouble)
    with opened(face, virtual, retries=Retries(attempts=2)) as client:
        request = client.build("POST", f"{server.url}/payments", content=BODY)
        try:
            assert client.send(request).status_code == 503
        except BROKEN:
            assert trouble[0] == Drop("after")
        client.send(request)
        client.send(request)
    assert server.keys == ["key-1"] * 3 + ["key-2"]


def test_an_unanswered_request_in_another_operation_is_another(face: str, server: Script, virtual: Virtual) -> None:
    server.then(Drop("after"), Drop("after"))
    with opened(face, virtual, retries=Retries(attempts=1)) as client:
        request = client.build("POST", f"{server.url}/payments", content=BODY)
        for name in ("order-7", "order-8"):
            with operation(name), pytest.raises(BROKEN):
                client.send(request)
        with operation("order-8"):
            client.send(request)
    first, second, third = server.keys
    assert first != second == third


def test_a_challenge_does_not_change_the_key(face: str, server: Script, virtual: Virtual, tmp_path: Path) -> None:
    challenge = {"www-authenticate": 'Digest realm="r", nonce="n", qop="auth", algorithm=SHA-256'}
    server.then(Reply(401, challenge))
    kind = requests.auth.HTTPDigestAuth if face == "requests" else httpx.DigestAuth
    auth = kind("u", "p")
    with opened(face, virtual, auth=auth, journal=tmp_path / "keys.db") as client, operation("order-7"):
        client.send(client.build("POST", f"{server.url}/payments", content=BODY))
    assert len(server.got) == 2
    assert "authorization" in server.got[1].headers
    assert len(set(server.keys)) == 1, "once the challenge is known the first attempt carries it: it must be this key"


def test_a_cancelled_request_is_the_same_operation(server: Script, virtual: Virtual) -> None:
    class Hanging(httpx.AsyncBaseTransport):
        def __init__(self) -> None:
            self.keys: list[str] = []
            self.sent = asyncio.Event()

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            self.keys.append(request.headers["idempotency-key"])
            if len(self.keys) == 1:
                self.sent.set()
                await asyncio.Event().wait()
            return httpx.Response(200)

    async def story() -> list[str]:
        inner = Hanging()
        async with httpx.AsyncClient(transport=AsyncRetryTransport(inner, ambient=virtual.ambient())) as client:
            request = client.build_request("POST", "https://api.example.com/payments", content=BODY)
            task = asyncio.create_task(client.send(request))
            await inner.sent.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.send(request)
        return inner.keys

    assert asyncio.run(story()) == ["key-1", "key-1"]


def test_a_file_is_left_where_it_was(server: Script, virtual: Virtual, tmp_path: Path) -> None:
    (tmp_path / "scan").write_bytes(b"x" * 100)
    with opened("requests", virtual) as client, (tmp_path / "scan").open("rb") as scan:
        request = client.build("PUT", f"{server.url}/scans/1", content=scan)
        client.send(request)
        client.send(request)
        assert request.body is scan
    assert [one.body for one in server.got] == [b"x" * 100] * 2


def test_requests_that_are_gone_are_forgotten(server: Script, virtual: Virtual) -> None:
    server.then(*[Drop("after")] * 3)
    adapter = RetryAdapter(retries=Retries(attempts=1), ambient=virtual.ambient())
    with requests.Session() as session:
        session.mount("http://", adapter)
        for _ in range(3):
            with pytest.raises(BROKEN):
                session.post(f"{server.url}/payments", data=BODY)
    gc.collect()
    known: UnansweredByHooks = adapter._unanswered
    assert known._known == {}


def test_a_stream_that_cannot_be_remembered_is_sent_all_the_same(server: Script, virtual: Virtual) -> None:
    class Slotted(httpx.SyncByteStream):
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]  # as a dataclass has it

        def __iter__(self) -> Iterator[bytes]:
            yield BODY

    headers = {"host": f"127.0.0.1:{server.port}", "transfer-encoding": "chunked"}
    with opened("httpx", virtual, retries=Retries(streams="once")) as client:
        for _ in range(2):
            client.send(httpx.Request("POST", f"{server.url}/payments", headers=headers, stream=Slotted()))
    assert server.keys == ["key-1", "key-2"]


# Redirects ----------------------------------------------------------------------------------------


def test_on_the_same_host_the_key_stays(face: str, server: Script, virtual: Virtual, tmp_path: Path) -> None:
    server.then(Reply(308, {"location": "/payments/"}), Drop("after"))
    with opened(face, virtual, journal=tmp_path / "keys.db") as client:
        request = client.build("POST", f"{server.url}/payments", content=BODY)
        assert client.send(request).status_code == 200
        client.send(request)
    assert [(one.path, one.key) for one in server.got] == [
        ("/payments", "key-1"),
        *[("/payments/", "key-1")] * 2,
        ("/payments", "key-2"),
    ]


@pytest.mark.parametrize("given", [None, "mine"])
def test_another_host_never_sees_the_key(
    face: str, server: Script, other: Script, virtual: Virtual, given: str | None
) -> None:
    headers = {"Idempotency-Key": given} if given else {}
    server.then(*[Reply(307, {"location": f"{other.url}/payments"})] * 2)
    other.then(Drop("after"))
    with opened(face, virtual, retries=Retries(attempts=1)) as client:
        request = client.build("POST", f"{server.url}/payments", content=BODY, headers=headers)
        with pytest.raises(BROKEN):
            client.send(request)
        client.send(request)
    assert server.keys == [given or "key-1"] * 2
    first, second = other.keys
    assert first is not None
    assert first == second, "the second host recognises the repetition, by a key of its own"
    assert first not in server.keys
    assert other.done == [first]


def test_a_read_after_a_write_carries_no_key(face: str, server: Script, other: Script, virtual: Virtual) -> None:
    server.then(Reply(303, {"location": f"{other.url}/payments/1"}))
    with opened(face, virtual) as client:
        client.send(client.build("POST", f"{server.url}/payments", content=BODY))
    assert [(one.method, one.key) for one in other.got] == [("GET", None)]


def test_the_journal_names_both_hops(
    face: str, server: Script, other: Script, virtual: Virtual, tmp_path: Path
) -> None:
    server.then(Reply(307, {"location": f"{other.url}/payments"}))
    journal = Journal(tmp_path / "keys.db")
    with opened(face, virtual, journal=journal) as client, operation("order-7"):
        client.send(client.build("POST", f"{server.url}/payments", content=BODY))
    assert {one.key for one in journal.entries("order-7")} == {*server.keys, *other.keys}
    assert journal.unfinished() == []
    journal.close()


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (("http", "a", None), ("http", "a", 80), True),
        (("https", "a", None), ("https", "a", 443), True),
        (("http", "a", None), ("https", "a", None), True),
        (("https", "a", None), ("http", "a", None), False),
        (("http", "a", 8080), ("https", "a", None), False),
        (("https", "a", None), ("https", "b", None), False),
        (("https", "a", None), ("https", "a", 8443), False),
        (("https", "a", None), ("https", "a.b", None), False),
    ],
)
def test_what_the_same_host_is(first: Any, second: Any, same: bool) -> None:
    assert is_same_host(Destination(*first, "/x"), Destination(*second, "/y")) is same
