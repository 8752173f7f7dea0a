"""The Quart decorator, below the application's own."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from quart import Blueprint, Quart, Response, abort, g, request

from retrysafe import Answer, RetrySafe
from retrysafe.errors import InProgress, UsageError
from retrysafe.web.quart import current_key, idempotent, install
from tests.web.frameworks.calling import calling, is_replay, keyed
from tests.web.frameworks.paying import Paying

RUNS: list[str] = []
REVOKED: set[str] = set()


@pytest.fixture(autouse=True)
def nothing_happened() -> None:
    RUNS.clear()
    REVOKED.clear()


def signed_in(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    async def checked(*args: Any, **kwargs: Any) -> Any:
        g.account = request.headers.get("authorization", "").removeprefix("Bearer ")
        if g.account not in ("alice", "bob"):
            abort(401)
        if g.account in REVOKED:
            abort(403)
        return await view(*args, **kwargs)

    return checked


async def who() -> str:
    return str(g.account)


v1 = Blueprint("v1", __name__, url_prefix="/v1")


@v1.post("/pay/<id>")
@signed_in
@idempotent(who)
async def pay(id: str) -> Any:
    RUNS.append("pay")
    key = current_key()
    assert key is not None
    return {"run": len(RUNS), "key": key.value, "sent": await request.get_json()}, 201


@v1.post("/blocking")
@signed_in
@idempotent(lambda: g.account)
def blocking() -> str:
    RUNS.append("blocking")
    return f"run {len(RUNS)}"


@v1.post("/stream")
@signed_in
@idempotent(who)
async def stream() -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for i in range(100):
            yield f"{i}-{len(RUNS)}\n".encode()

    RUNS.append("stream")
    return Response(pieces(), mimetype="text/plain")


@v1.post("/declined")
@signed_in
@idempotent(who)
async def declined() -> Any:
    RUNS.append("declined")
    abort(418)


@v1.post("/fails")
@signed_in
@idempotent(who)
async def fails() -> Any:
    RUNS.append("fails")
    raise RuntimeError("canary")


@v1.post("/orders")
@signed_in
@idempotent(who, strength="operation")
async def orders() -> Any:
    key = current_key()
    assert key is not None
    if key.value == "busy":
        raise InProgress(key.value, 1)
    return Answer(201, {"order": key.value}, [("Link", "</a>"), ("Link", "</b>")])


@v1.get("/pay")
@signed_in
@idempotent(who)
async def shown() -> Any:
    assert current_key() is None
    return {"runs": len(RUNS)}


safe = RetrySafe("memory://")
app = Quart(__name__)
app.register_blueprint(v1)
install(app, safe=safe)


class TestPaying(Paying):
    app, safe, revoked, target = app, safe, REVOKED, "POST /v1/pay/<id>"


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/blocking", 200), ("/v1/stream", 200), ("/v1/declined", 418), ("/v1/fails", 500)]
)
async def test_every_kind_of_view_and_ending_is_an_answer(path: str, status: int) -> None:
    sent = keyed()
    async with calling(app) as http:
        first, again = [await http.post(path, headers=sent) for _ in range(2)]
    assert first.status_code == status
    assert is_replay(first, again)
    assert "canary" not in first.text
    assert len(RUNS) == 1


async def test_a_body_in_pieces_arrives_whole() -> None:
    """Quart reads the body in a task of its own while the view claims."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"a": "' + b"x" * 70_000
        yield b"y" * 70_000 + b'"}'

    sent = keyed(**{"Content-Type": "application/json"})
    async with calling(app) as http:
        first = await http.post("/v1/pay/7", headers=sent, content=pieces())
        again = await http.post("/v1/pay/7", headers=sent, content=pieces())
    assert first.json()["sent"] == {"a": "x" * 70_000 + "y" * 70_000}
    assert is_replay(first, again)


async def test_without_install_nothing_runs_and_the_error_says_what_to_do() -> None:
    bare = Quart("bare")
    seen: list[Exception] = []

    @bare.errorhandler(UsageError)
    async def wrong(error: UsageError) -> Any:
        seen.append(error)
        return "wrong", 500

    @bare.post("/pay")
    @idempotent(lambda: "a")
    async def pay() -> str:
        RUNS.append("bare")
        return ""

    async with calling(bare) as http:
        assert (await http.post("/pay", headers=keyed())).status_code == 500
    assert "install(app, safe=safe)" in str(seen[0])
    assert RUNS == []
