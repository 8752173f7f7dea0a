"""The Quart decorator, under the application's own."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from quart import Blueprint, Quart, Response, abort, g, request

from retrysafe import Answer, Key, RetrySafe
from retrysafe.core.ops import Lookup
from retrysafe.errors import InProgress, UsageError
from retrysafe.web.quart import current_key, idempotent, install
from tests.web.frameworks.calling import ALICE, BOB, calling, is_problem, is_replay, keyed

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
    return {"key": current_key()}


safe = RetrySafe("memory://")
app = Quart(__name__)
app.register_blueprint(v1)
install(app, safe=safe)


async def test_it_runs_once_and_is_replayed() -> None:
    sent = keyed("k1")
    async with calling(app) as http:
        first, again = [await http.post("/v1/pay/7", headers=sent, json={"a": 1}) for _ in range(2)]
        other = await http.post("/v1/pay/7", headers=sent, json={"a": 2})
    assert first.json() == {"run": 1, "key": "k1", "sent": {"a": 1}}
    assert is_replay(first, again)
    assert is_problem(other, 422, "mismatch")
    found = await safe.aexecute(Lookup(Key("k1", "alice").id(safe.namespace)))
    assert found.record is not None
    assert found.record.target == "POST /v1/pay/<id>"


async def test_a_replay_never_answers_someone_who_could_not_have_asked() -> None:
    sent = keyed()
    async with calling(app) as http:
        await http.post("/v1/pay/7", headers=sent, json={})
        nobody = await http.post("/v1/pay/7", headers={"Idempotency-Key": sent["Idempotency-Key"]}, json={})
        bob = await http.post("/v1/pay/7", headers={**sent, **BOB}, json={})
        REVOKED.add("alice")
        revoked = await http.post("/v1/pay/7", headers=sent, json={})
    assert (nobody.status_code, revoked.status_code) == (401, 403)
    assert "run" not in nobody.text + revoked.text
    assert bob.json()["run"] == 2


async def test_missing_and_malformed_keys() -> None:
    async with calling(app) as http:
        assert is_problem(await http.post("/v1/pay/7", headers=ALICE, json={}), 400, "missing-key")
        assert is_problem(await http.post("/v1/pay/7", headers=keyed("a, b"), json={}), 400, "malformed-key")
        assert (await http.get("/v1/pay", headers=ALICE)).json() == {"key": None}


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


async def test_an_operation_claims_its_own_record_and_its_answer_is_sent_as_it_is() -> None:
    async with calling(app) as http:
        told = await http.post("/v1/orders", headers=keyed("o1"))
        busy = await http.post("/v1/orders", headers=keyed("busy"))
    assert (told.status_code, told.content) == (201, b'{"order":"o1"}')
    assert told.headers.get_list("link") == ["</a>", "</b>"]
    assert is_problem(busy, 409, "in-progress")


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
