"""The Flask extension in process; under real servers it runs the conformance cases (tests/web/conformance)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from uuid import uuid4

import pytest
from flask import Blueprint, Flask, Response, abort, g, got_request_exception, jsonify, request, session

from retrysafe import Answer, Key, Policy, RetrySafe
from retrysafe.core.ops import List
from retrysafe.core.problem_names import problem_name
from retrysafe.errors import UsageError
from retrysafe.web.flask import Idempotency, current_key

TOKENS = {"t-alice": "alice", "t-bob": "bob"}


def login_required(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def checked(*args: Any, **kwargs: Any) -> Any:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token in g_revoked:
            abort(403)
        if token not in TOKENS:
            abort(401)
        g.account = TOKENS[token]
        return view(*args, **kwargs)

    return checked


g_revoked: set[str] = set()


@pytest.fixture
def safe(sqlite_url: str) -> Iterator[RetrySafe]:
    with RetrySafe(sqlite_url) as opened:
        yield opened


@pytest.fixture
def app(safe: RetrySafe) -> Flask:
    g_revoked.clear()
    made = Flask("shop")
    made.secret_key = "for tests"
    Idempotency(made, safe=safe)
    return made


class Caller:
    """An application with one view, and how often it ran."""

    def __init__(self, app: Flask, view: Callable[..., Any], **options: Any) -> None:
        self.runs = 0
        idempotency = Idempotency(scope=lambda: g.account)

        @wraps(view)
        def counted(**kwargs: Any) -> Any:
            self.runs += 1
            return view(**kwargs)

        app.add_url_rule(
            "/pay", view_func=login_required(idempotency.protect(**options)(counted)), methods=["POST", "GET"]
        )
        self._client = app.test_client()

    def __call__(self, key: str | None, token: str = "t-alice", method: str = "POST", data: bytes = b"{}") -> Any:
        headers = {"Authorization": f"Bearer {token}", **({"Idempotency-Key": key} if key else {})}
        return self._client.open("/pay", method=method, data=data, headers=headers)


def fresh() -> str:
    return uuid4().hex


def created() -> Any:
    session["seen"] = fresh()
    return jsonify(id=fresh(), account=g.account), 201


def test_it_runs_once_and_the_replay_has_no_cookie(app: Flask) -> None:
    call, key = Caller(app, created), fresh()
    first, again = call(key), call(key)
    assert (first.status_code, first.data) == (again.status_code, again.data)
    assert first.status_code == 201
    assert "Set-Cookie" in first.headers
    assert "Set-Cookie" not in again.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert call.runs == 1


def test_a_replay_is_for_those_only_who_may_ask_now(app: Flask) -> None:
    call, key = Caller(app, created), fresh()
    expired = call(key, "t-expired")
    first = call(key)
    assert expired.status_code == 401
    assert first.status_code == 201, "the expired token's 401 was not kept"
    assert call(key, "nobody").status_code == 401
    g_revoked.add("t-alice")
    revoked = call(key)
    assert revoked.status_code == 403
    assert first.json["id"] not in revoked.text
    g_revoked.clear()
    assert call(key).data == first.data
    assert call.runs == 1


def test_two_tenants_share_nothing(app: Flask) -> None:
    call, key = Caller(app, created), fresh()
    assert call(key).json["account"] == "alice"
    assert call(key, "t-bob").json["account"] == "bob"
    assert call.runs == 2


PDF = b"%PDF-1.7\n" + random.Random(1).randbytes(4000)
KINDS: dict[str, Callable[[], Any]] = {
    "a PDF": lambda: Response(PDF, 200, mimetype="application/pdf"),
    "no content": lambda: ("", 204),
    "streamed": lambda: Response((f"{fresh()}\n" for _ in range(50)), mimetype="text/csv"),
    "abort": lambda: abort(409, fresh()),
}


@pytest.mark.parametrize("view", KINDS.values(), ids=KINDS)
def test_any_answer_replays_exactly(app: Flask, view: Callable[[], Any]) -> None:
    call, key = Caller(app, view), fresh()
    first, again = call(key), call(key)
    assert (first.status_code, first.data, first.content_type) == (again.status_code, again.data, again.content_type)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert call.runs == 1


def boom() -> Any:
    raise ZeroDivisionError("secret detail")


def test_an_uncaught_exception_is_stored_and_reported(app: Flask) -> None:
    call, key, heard = Caller(app, boom), fresh(), []

    def hear(sender: Flask, exception: BaseException, **_: Any) -> None:
        heard.append(exception)

    with got_request_exception.connected_to(hear, app):
        first, again = call(key), call(key)
    assert first.status_code == again.status_code == 500
    assert first.data == again.data
    assert first.content_type == "application/problem+json"
    assert "secret detail" not in first.text
    assert [type(error) for error in heard] == [ZeroDivisionError], "Flask's own reporting, once: a replay is no error"
    assert call.runs == 1


def test_an_uncaught_exception_reaches_a_debugger(app: Flask) -> None:
    """`PROPAGATE_EXCEPTIONS`, as under `flask run --debug`."""
    app.testing = True
    call, key = Caller(app, boom), fresh()
    with pytest.raises(ZeroDivisionError):
        _ = call(key).data
    app.testing = False
    assert call(key).headers["Idempotent-Replayed"] == "true"
    assert call.runs == 1


def test_a_failure_may_be_released(app: Flask) -> None:
    call, key = Caller(app, boom, policy=Policy(failures="release")), fresh()
    assert [call(key).status_code for _ in range(2)] == [500, 500]
    assert call.runs == 2


def test_an_error_page_of_the_applications_own_is_its_answer(app: Flask) -> None:
    app.register_error_handler(500, lambda error: (f"sorry {fresh()}", 500))
    call, key = Caller(app, boom), fresh()
    first, again = call(key), call(key)
    assert first.text.startswith("sorry")
    assert first.data == again.data
    assert call.runs == 1


def test_a_handled_exception_is_an_answer(app: Flask) -> None:
    app.register_error_handler(ZeroDivisionError, lambda error: ("declined", 402))
    call, key = Caller(app, boom), fresh()
    assert [call(key).status_code for _ in range(2)] == [402, 402]
    assert call.runs == 1


def test_a_stream_that_breaks_is_a_failure(app: Flask) -> None:
    def broken() -> Response:
        def pieces() -> Iterator[bytes]:
            yield b"half"
            raise ZeroDivisionError

        return Response(pieces())

    call, key = Caller(app, broken), fresh()
    with pytest.raises(ZeroDivisionError):
        _ = call(key).data
    assert call(key).status_code == 500
    assert call.runs == 1


def test_the_safe_methods_of_a_view_are_left_alone(app: Flask) -> None:
    call = Caller(app, created)
    assert [call(None, method="GET").status_code for _ in range(2)] == [201, 201]
    assert call.runs == 2


def test_an_async_view(app: Flask) -> None:
    key, runs = fresh(), []
    idempotency = Idempotency(scope=lambda: g.account)

    async def view() -> Any:
        runs.append(current_key())
        return fresh(), 201

    app.add_url_rule("/async", view_func=login_required(idempotency.protect()(view)), methods=["POST"])
    headers = {"Authorization": "Bearer t-alice", "Idempotency-Key": key}
    first, again = (app.test_client().post("/async", headers=headers) for _ in range(2))
    assert first.data == again.data
    assert runs == [Key(key, "alice")]


def test_records_are_named_by_the_rule_and_not_by_the_path(app: Flask, safe: RetrySafe) -> None:
    idempotency = Idempotency(scope=lambda: "alice")
    blueprint = Blueprint("orders", __name__, url_prefix="/orders")
    blueprint.post("/<int:number>/pay")(idempotency.protect()(lambda number: ("", 204)))
    app.register_blueprint(blueprint)
    app.test_client().post("/orders/7/pay", headers={"Idempotency-Key": fresh()})
    [record] = safe.execute(List()).records
    assert record.target == "POST /orders/<int:number>/pay"


def test_an_operation_makes_its_own_record(app: Flask) -> None:
    keys: list[Key | None] = []

    def view() -> Any:
        keys.append(current_key())
        return Answer(201, b'{"order": 1}', [("content-type", "application/json")])

    call, key = Caller(app, view, strength="operation"), fresh()
    first, again = call(key), call(key)
    assert (first.status_code, first.json) == (201, {"order": 1})
    assert "Idempotent-Replayed" not in again.headers, "nothing was stored here"
    assert keys == [Key(key, "alice")] * 2


def test_a_factory_and_the_address_from_the_config(sqlite_url: str) -> None:
    idempotency = Idempotency(scope=lambda: "alice")
    apps = []
    for _ in range(2):
        made = Flask("shop")
        made.config["RETRYSAFE_URL"] = sqlite_url
        idempotency.init_app(made)
        made.post("/pay")(idempotency.protect()(fresh))
        apps.append(made)
    key = fresh()
    first, second = (made.test_client().post("/pay", headers={"Idempotency-Key": key}) for made in apps)
    assert first.data == second.data, "one store, two processes of one application"
    for made in apps:
        with made.app_context():
            idempotency.safe.close()


class TestWhatIsSetUpWrongly:
    def test_twice_on_one_application(self, app: Flask, safe: RetrySafe) -> None:
        with pytest.raises(UsageError, match="init_app once"):
            Idempotency(app, safe=safe)

    def test_no_store(self) -> None:
        with pytest.raises(UsageError, match="RETRYSAFE_URL"):
            Idempotency(Flask("shop"))

    def test_no_scope(self) -> None:
        with pytest.raises(UsageError, match="needs the principal"):
            Idempotency().protect()

    def test_a_protected_view_on_an_application_that_is_not_captured(self) -> None:
        made = Flask("shop")
        made.testing = True
        made.post("/pay")(Idempotency(scope=lambda: "alice").protect()(lambda: "never"))
        with pytest.raises(UsageError, match="init_app"):
            made.test_client().post("/pay")

    def test_nobody_asks(self, app: Flask) -> None:
        app.post("/pay")(Idempotency(scope=lambda: None).protect()(lambda: "never"))
        told = app.test_client().post("/pay", headers={"Idempotency-Key": fresh()})
        assert told.status_code == 500
        assert problem_name(told.json["type"]) == "misconfigured"
