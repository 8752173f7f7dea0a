"""Every mount on a real server: raw bytes in, the same answers out; and servers that are killed in the middle of a
handler."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from retrysafe.core.problem_names import problem_name
from retrysafe.webhooks import Stripe
from tests.waiting import until
from tests.web.conformance.targets import Launch, Target, gunicorn, uvicorn

APPS = "tests.webhooks.apps"
SCHEME = Stripe("whsec_old")
LIMIT = 1 << 20
TIMEOUT_SECONDS = 120.0
SHORT_LEASE_SECONDS = "1.0"
"""The lease where a server is killed: it has to lapse before the event may be handled again."""


@dataclass(frozen=True)
class Mount:
    launch: Launch
    path: str = "/hook"


MOUNTS = {
    "asgi": Mount(uvicorn(f"{APPS}.bare:asgi")),
    "wsgi": Mount(gunicorn(f"{APPS}.bare:wsgi")),
    "fastapi": Mount(uvicorn(f"{APPS}.frameworks:fastapi")),
    "starlette": Mount(uvicorn(f"{APPS}.frameworks:starlette")),
    "starlette-asgi": Mount(uvicorn(f"{APPS}.frameworks:starlette"), "/bare"),
    "flask": Mount(gunicorn(f"{APPS}.frameworks:flask")),
    "django": Mount(gunicorn(f"{APPS}.django_app:wsgi")),
    "django-async": Mount(uvicorn(f"{APPS}.django_app:asgi"), "/async-hook"),
}


class Running:
    """One mount on its server, and a sender for it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.mount = MOUNTS[name]
        self.target = Target(name, self.mount.launch, f"sqlite:///{folder / 'keys.db'}", folder)
        self.folder = folder
        self.target.start()

    def request(self, id_: str, type_: str = "plain.made") -> tuple[dict[str, str], bytes]:
        body = json.dumps({"id": id_, "type": type_, "text": "naïve  \t é"}, ensure_ascii=False).encode()
        return SCHEME.sign(body, id="", now=time.time()) | {"Content-Type": "application/json"}, body

    def send(self, id_: str, type_: str = "plain.made") -> httpx.Response:
        headers, body = self.request(id_, type_)
        return self.post(headers, body)

    def post(self, headers: dict[str, str], body: bytes | Iterator[bytes]) -> httpx.Response:
        return self.target.http.post(self.mount.path, content=body, headers=headers)

    def effects(self, id_: str) -> int:
        path = self.folder / f"effects-{id_}"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def began(self, id_: str, times: int = 1) -> None:
        until(lambda: self.effects(id_) >= times, TIMEOUT_SECONDS, f"handler {times} of {id_}")


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.store("sqlite")) for name in MOUNTS])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(request.param, tmp_path_factory.mktemp(request.param))
    yield made
    made.target.stop()


def new_id() -> str:
    return uuid4().hex


@pytest.mark.parametrize("type_", ["plain.made", "async.made"])
def test_once_and_then_the_same_answer(running: Running, type_: str) -> None:
    id_ = new_id()
    answers = [running.send(id_, type_) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert ["idempotent-replayed" in answer.headers for answer in answers] == [False, True, True]
    assert all(answer.headers["cache-control"] == "no-store" for answer in answers)
    assert running.effects(id_) == 1


def test_a_forged_delivery_is_refused(running: Running) -> None:
    id_ = new_id()
    headers, body = running.request(id_)
    response = running.post(headers, body.replace(b"made", b"mode"))
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/problem+json"
    assert problem_name(response.json()["type"]) == "verification"
    assert running.post({}, body).status_code == 400
    assert running.effects(id_) == 0
    assert running.post(headers, body).status_code == 200


def test_a_body_without_a_length_is_read_too(running: Running) -> None:
    id_ = new_id()
    headers, body = running.request(id_)
    response = running.post(headers, iter([body[:9], body[9:]]))
    # Django's WSGI side has no body without a length, so the delivery is refused, and nothing happens.
    read = running.target.name != "django"
    assert response.status_code == (200 if read else 400)
    assert running.effects(id_) == read


def test_a_body_that_is_too_large_is_refused(running: Running) -> None:
    headers, _ = running.request(new_id())
    assert running.post(headers, b" " * (LIMIT + 1)).status_code == 413


def test_only_post(running: Running) -> None:
    for method in ("GET", "PUT", "DELETE"):
        response = running.target.http.request(method, running.mount.path)
        assert response.status_code == 405
        assert "POST" in response.headers["allow"]


@pytest.mark.parametrize("type_", ["plain.made", "async.made"])
def test_a_failing_handler_is_run_by_the_retry(running: Running, type_: str) -> None:
    id_ = new_id()
    (running.folder / f"fail-{id_}").touch()
    assert running.send(id_, type_).status_code == 500
    (running.folder / f"fail-{id_}").unlink()
    assert [running.send(id_, type_).status_code for _ in range(2)] == [200, 200]
    assert running.effects(id_) == 2


@pytest.mark.parametrize("type_", ["plain.slow", "async.slow"])
def test_during_processing_it_is_409_and_does_not_run(running: Running, type_: str) -> None:
    id_ = new_id()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(running.send, id_, type_)
        running.began(id_)
        again = running.send(id_, type_)
        running.target.go(id_)
        assert first.result().status_code == 200
    assert again.status_code == 409
    assert again.headers["retry-after"].isdigit()
    assert running.send(id_, type_).status_code == 200
    assert running.effects(id_) == 1


def raw_request(running: Running, id_: str, type_: str) -> bytes:
    headers, body = running.request(id_, type_)
    lines = [f"POST {running.mount.path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.mark.parametrize("type_", ["plain.slow", "async.slow"])
def test_a_sender_that_hangs_up_is_answered_when_it_comes_again(running: Running, type_: str) -> None:
    """Senders wait only some seconds. The handler goes on, and the retry finds its result."""
    id_ = new_id()
    with closing(running.target.connect()) as connection:
        connection.sendall(raw_request(running, id_, type_))
        running.began(id_)
    assert running.send(id_, type_).status_code == 409
    running.target.go(id_)
    until(lambda: running.send(id_, type_).status_code == 200, TIMEOUT_SECONDS, "the handler to finish")
    assert running.effects(id_) == 1


@pytest.mark.store("sqlite")
@pytest.mark.parametrize("name", ["asgi", "wsgi", "django"])
def test_killed_in_mid_handler_the_retry_runs(name: str, tmp_path: Path) -> None:
    """kill -9: the event is held until the lease lapses, and then the sender's retry runs it. It is never lost, and 2xx
    is never sent for nothing."""
    (tmp_path / "lease").write_text(SHORT_LEASE_SECONDS)
    running, events = Running(name, tmp_path), {new_id(): "plain.slow", new_id(): "async.slow"}
    try:
        with ExitStack() as connections:
            for id_, type_ in events.items():
                connection = connections.enter_context(closing(running.target.connect()))
                connection.sendall(raw_request(running, id_, type_))
                running.began(id_)
            running.target.kill()
        running.target.start()
        for id_, type_ in events.items():
            running.target.go(id_)
            assert set(delivered(running, id_, type_)) <= {409, 200}
            assert running.effects(id_) == 2, "the one that died, and the one that counts"
            assert running.send(id_, type_).headers["idempotent-replayed"] == "true"
            assert running.effects(id_) == 2
    finally:
        running.target.stop()


def delivered(running: Running, id_: str, type_: str) -> list[int]:
    """The answers to the sender until one is 200."""
    statuses: list[int] = []

    def is_answered() -> bool:
        statuses.append(running.send(id_, type_).status_code)
        return statuses[-1] == 200

    until(is_answered, TIMEOUT_SECONDS, "the lease to lapse")
    return statuses
