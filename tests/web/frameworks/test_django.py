"""Django in process, through its own test clients: the plain one is WSGI's, the async one ASGI's. Under real servers it
runs the conformance cases (tests/web/conformance)."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from retrysafe.core.problem_names import problem_name
from tests.web.frameworks import django_project as project  # sets Django up, so it comes first

# isort: split
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.handlers.asgi import ASGIRequest
from django.core.management import call_command
from django.core.signals import got_request_exception
from django.db import connection, connections
from django.test import AsyncClient, Client, RequestFactory, override_settings

from retrysafe.core.keys import Key
from retrysafe.core.ops import List, Lookup
from retrysafe.errors import StoreURLError, UsageError
from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.web.django import IdempotencyMiddleware, conf, convert
from retrysafe.web.django.asgi import get_asgi_application
from retrysafe.web.paths import find_exact_path
from retrysafe.web.view import environ_path

fresh = project.fresh


@pytest.fixture(scope="module", autouse=True)
def _tables() -> Iterator[None]:
    call_command("migrate", verbosity=0)
    yield
    conf.safe().close()
    connections.close_all()


def user() -> User:
    made: User = User.objects.create_user(fresh())
    return made


class Caller:
    """A logged-in user at one of the two clients."""

    def __init__(self, who: User | None, *, looped: bool, raising: bool = False) -> None:
        self.looped = looped
        self.client: Any = (AsyncClient if looped else Client)(raise_request_exception=raising)
        if who is not None:
            Client.force_login(self.client, who)

    def __call__(self, path: str, key: str, **more: Any) -> Any:
        given = {"data": b"{}", "content_type": "application/json", **more}
        headers = {"Idempotency-Key": key, "X-Tag": key, **given.pop("headers", {})}
        sent = self.client.post(path, headers=headers, **given)
        return asyncio.run(self._whole(sent)) if self.looped else self._plain(sent)

    async def _whole(self, sent: Any) -> Any:
        response = await sent
        if response.streaming and response.is_async:
            response.whole = b"".join([part async for part in response])
        else:
            self._plain(response)
        await conf.safe().async_store.aclose()
        return response

    def _plain(self, response: Any) -> Any:
        response.whole = b"".join(response) if response.streaming else response.content
        return response


@pytest.fixture(params=[False, True], ids=["WSGI", "ASGI"])
def looped(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture
def call(looped: bool) -> Caller:
    return Caller(user(), looped=looped)


def runs(key: str) -> int:
    return project.RAN.count(key)


def same(first: Any, again: Any) -> None:
    assert (first.status_code, first.whole) == (again.status_code, again.whole)
    assert first.headers.get("Content-Type") == again.headers.get("Content-Type")
    assert again.headers["Idempotent-Replayed"] == "true"


def problem(response: Any, status: int, name: str) -> bool:
    assert response.status_code == status
    return problem_name(response.json()["type"]) == name


@pytest.mark.parametrize("path", ["/pay", "/login/pay", "/apay", "/early"])
def test_it_runs_once_and_the_replay_has_no_cookie(call: Caller, path: str) -> None:
    key = fresh()
    first, again = call(path, key), call(path, key)
    assert first.status_code == 201
    same(first, again)
    assert not again.cookies
    assert "Set-Cookie" not in dict(again.items())
    assert runs(key) == 1
    if path == "/pay":
        assert "sessionid" in first.cookies


def of_colour(path: str, call: Caller) -> str:
    """Django warns about an async stream on WSGI, as it should."""
    return f"/a{path[1:]}" if call.looped else path


@pytest.mark.parametrize("path", ["/pdf", "/nothing", "/stream", "its own stream"])
def test_any_answer_replays_exactly(call: Caller, path: str) -> None:
    key = fresh()
    path = of_colour("/stream", call) if path == "its own stream" else path
    first, again = call(path, key), call(path, key)
    same(first, again)
    assert runs(key) == 1
    if path == "/pdf":
        assert again.whole == project.PDF
    if "stream" in path:
        assert again.whole.count(b"\n") == 50


def test_what_other_middleware_made_of_it_is_what_is_stored(call: Caller) -> None:
    """The GZip middleware is inside: its bytes are stored and replayed, not compressed again."""
    key, packed = fresh(), {"Accept-Encoding": "gzip"}
    first, again = (call("/pdf", key, headers=packed) for _ in range(2))
    assert first.headers["Content-Encoding"] == "gzip"
    same(first, again)
    assert runs(key) == 1


@pytest.mark.parametrize("path", ["/events", "/large"])
def test_what_cannot_be_kept_passes_by_and_leaves_a_tombstone(call: Caller, path: str) -> None:
    key, path = fresh(), of_colour(path, call)
    first, again = call(path, key), call(path, key)
    assert first.status_code == 200
    assert len(first.whole) == (100 if "large" in path else 27)
    assert problem(again, 410, "answer-gone")
    assert runs(key) == 1


def test_a_replay_is_for_those_only_who_may_ask_now(looped: bool) -> None:
    who, key = user(), fresh()
    call, stranger = Caller(who, looped=looped), Caller(None, looped=looped)
    assert stranger("/pay", key).status_code == 401
    first = call("/pay", key)
    assert first.status_code == 201, "the 401 was not kept"
    refused = stranger("/pay", key)
    assert refused.status_code == 401
    assert first.json()["id"] not in refused.whole.decode()
    assert stranger("/login/pay", key).status_code == 302, "login_required is above"
    who.is_active = False
    who.save()
    assert call("/pay", key).status_code == 401
    assert runs(key) == 1


def test_two_users_share_nothing(looped: bool) -> None:
    key = fresh()
    answers = [Caller(user(), looped=looped)("/pay", key) for _ in range(2)]
    assert answers[0].json()["user"] != answers[1].json()["user"]
    assert runs(key) == 2


def test_the_view_knows_its_key(call: Caller) -> None:
    key = fresh()
    assert key in call("/pay", key).json()["key"]


def test_a_form_with_a_file_arrives_whole(call: Caller) -> None:
    key = fresh()
    if call.looped:
        return  # the async client of the tests encodes forms the same way; one is enough

    def send(text: bytes) -> Any:
        data = {"amount": "10", "file": SimpleUploadedFile("a.txt", text)}
        headers = {"Idempotency-Key": key, "X-Tag": key}
        return call._plain(call.client.post("/form", data, headers=headers))

    first, again = send(b"hello"), send(b"hello")
    assert first.json()["file"] == "hello"
    same(first, again)
    assert problem(send(b"other"), 422, "mismatch")
    assert runs(key) == 1


@pytest.mark.parametrize("path", ["/boom", "/aboom"])
def test_an_uncaught_exception_is_stored_and_reported(call: Caller, path: str) -> None:
    key, heard = fresh(), []

    def hear(**told: Any) -> None:
        heard.append(told["request"].path)

    got_request_exception.connect(hear)
    try:
        first, again = call(path, key), call(path, key)
    finally:
        got_request_exception.disconnect(hear)
    same(first, again)
    assert problem(first, 500, "failed")
    assert b"secret detail" not in first.whole
    assert heard == [path], "Django's own reporting, once: a replay is no error"
    assert runs(key) == 1


def test_the_test_client_raises_what_the_view_raised(looped: bool) -> None:
    call, key = Caller(user(), looped=looped, raising=True), fresh()
    with pytest.raises(ZeroDivisionError, match="secret detail"):
        call("/boom", key)
    assert call("/boom", key).headers["Idempotent-Replayed"] == "true"


@override_settings(DEBUG=True)
def test_the_debug_page_is_never_stored(call: Caller) -> None:
    key = fresh()
    first, again = call("/boom", key), call("/boom", key)
    assert problem(first, 500, "failed")
    same(first, again)


def test_an_error_page_of_the_projects_own_is_its_answer(call: Caller) -> None:
    key = fresh()
    with override_settings(ROOT_URLCONF="tests.web.frameworks.django_own_page"):
        first, again = call("/boom", key), call("/boom", key)
    assert first.whole.startswith(b"sorry ")
    same(first, again)
    assert runs(key) == 1


def test_a_failure_may_be_released(call: Caller) -> None:
    key = fresh()
    assert [call("/flaky", key).status_code for _ in range(2)] == [500, 500]
    assert runs(key) == 2


def test_a_stream_that_breaks_is_a_failure(call: Caller) -> None:
    key = fresh()
    first, again = call("/broken", key), call("/broken", key)
    assert problem(first, 500, "failed")
    same(first, again)
    assert runs(key) == 1


def test_an_operation_makes_its_own_record(call: Caller) -> None:
    key = fresh()
    first, again = call("/operate", key), call("/operate", key)
    assert first.status_code == again.status_code == 201
    assert first.whole == key.encode()
    assert runs(key) == 2


def test_what_asks_for_nothing_passes_by(call: Caller) -> None:
    key = fresh()
    assert [call("/unprotected", key).whole for _ in range(2)] == [b"ab", b"ab"]


def test_records_are_named_by_the_pattern(call: Caller) -> None:
    key = fresh()
    call("/pay", key)
    page = conf.safe().execute(List(limit=1000))
    assert [record.target for record in page.records if record.key == key] == ["POST /pay"]


PLAIN_INSIDE = [project.OURS, "tests.web.frameworks.django_project.plain_middleware", *project.REST[1:]]


@pytest.mark.parametrize("path", ["/pay", "/boom", "/stream"])
def test_a_plain_middleware_inside_makes_ours_a_plain_one_under_asgi(path: str) -> None:
    """Django runs each middleware sync or async, like its neighbour."""
    with override_settings(MIDDLEWARE=PLAIN_INSIDE):
        call, key = Caller(user(), looped=True), fresh()
        first, again = call(path, key, data=b'{"amount": 10}'), call(path, key, data=b'{"amount": 10}')
        other = call(path, key, data=b'{"amount": 11}')
    same(first, again)
    assert problem(other, 422, "mismatch"), "the body was compared"
    assert runs(key) == 1


@pytest.mark.parametrize("raw", [b"/%E6%97%A5", None], ids=["raw path told", "not told"])
def test_a_path_beyond_latin_is_not_lost_where_a_plain_middleware_meets_asgi(raw: bytes | None) -> None:
    """There Django gives the path as text. Encoded as WSGI does, `/日` and `/本` would be the same path."""

    def path_of(path: str, raw_path: bytes | None) -> str | None:
        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
        environ = convert.build_environ(ASGIRequest({**scope, "raw_path": raw_path}, io.BytesIO()))
        return find_exact_path(environ, environ_path(environ))

    assert path_of("/日", raw) == "/%E6%97%A5"
    assert path_of("/本", None) == "/%E6%9C%AC"
    assert path_of("/a", b"/a") is None


@pytest.mark.parametrize("path", ["/pay", "/apay", "/boom", "/aboom", "/pdf", "/astream", "/early"])
def test_with_our_application_around_djangos(path: str) -> None:
    key, login = fresh(), Client()
    login.force_login(user())
    cookie = f"sessionid={login.cookies['sessionid'].value}"
    headers = {"Idempotency-Key": key, "X-Tag": key, "Cookie": cookie, "Host": "testserver"}

    async def story() -> list[httpx.Response]:
        transport = httpx.ASGITransport(get_asgi_application())
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as http:
            told = [await http.post(path, content=body, headers=headers) for body in (b"1", b"1", b"2")]
        await conf.safe().async_store.aclose()
        return told

    first, again, other = asyncio.run(story())
    assert (first.status_code, first.content) == (again.status_code, again.content)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert first.status_code == (500 if "boom" in path else first.status_code)
    assert problem(other, 422, "mismatch")
    assert runs(key) == 1
    if "boom" in path:
        assert problem(first, 500, "failed")


class TestAtomicRequests:
    """The claim comes before the request's transaction, and is not part of it."""

    @pytest.fixture(autouse=True)
    def _atomic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
        project.SEEN.clear()

    @pytest.fixture
    def call(self) -> Caller:
        return Caller(user(), looped=False)

    def test_the_view_is_inside_and_the_claim_outside(self, call: Caller) -> None:
        key = fresh()
        first, again = call("/write", key), call("/write", key)
        assert first.json() == {"atomic": True}
        same(first, again)
        assert project.SEEN == [False, False]
        assert User.objects.filter(username=key).count() == 1

    @pytest.mark.parametrize("mode", [None, "IMMEDIATE"])
    def test_sqlite_does_not_wait_for_itself(
        self, call: Caller, monkeypatch: pytest.MonkeyPatch, mode: str | None
    ) -> None:
        """With IMMEDIATE the request itself holds the write lock from its BEGIN on."""
        connection.ensure_connection()
        monkeypatch.setattr(connections["default"], "transaction_mode", mode)
        key = fresh()
        assert call("/write", key).status_code == 201

    def test_a_failure_is_rolled_back_and_remembered(self, call: Caller) -> None:
        key = fresh()
        first, again = call("/write", key, data=b"fail"), call("/write", key, data=b"fail")
        assert first.status_code == 500
        same(first, again)
        assert User.objects.filter(username=key).count() == 0
        assert runs(key) == 1

    def test_a_view_that_wants_no_transaction_gets_none(self, call: Caller) -> None:
        assert call("/write-alone", fresh()).json() == {"atomic": False}


class TestConfiguration:
    def test_the_store_is_the_projects_own_database(self) -> None:
        assert conf.store_url() == f"sqlite:///{project.FOLDER / 'project.db'}"
        key = fresh()
        who = user()
        Caller(who, looped=False)("/pay", key)
        found = conf.safe().execute(Lookup(Key(key, str(who.pk)).id("default")))
        assert found.record is not None
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM retrysafe_keys WHERE key = %s", [key])
            assert cursor.fetchone() == (1,)

    @pytest.mark.parametrize(
        ("config", "url"),
        [
            ({"NAME": "shop", "HOST": "db", "PORT": 5433, "USER": "me", "PASSWORD": "p@ss/w"},
             "postgresql://me:p%40ss%2Fw@db:5433/shop"),
            ({"NAME": "shop", "HOST": "", "PORT": "", "USER": ""}, "postgresql:///shop"),
            ({"NAME": "shop", "HOST": "::1", "PORT": "5433"}, "postgresql://[::1]:5433/shop"),
            ({"NAME": "shop", "HOST": "/run/pg", "USER": "me", "OPTIONS": {"sslmode": "require", "pool": True}},
             "postgresql://me@/shop?sslmode=require&host=%2Frun%2Fpg"),
        ],
    )  # fmt: skip
    def test_postgresql_as_a_url(self, config: dict[str, Any], url: str) -> None:
        assert conf.postgres_url("default", config) == url

    @pytest.mark.parametrize(
        ("config", "url"),
        [
            ({"NAME": "shop", "HOST": "db", "PORT": 3307, "USER": "me", "PASSWORD": "p@ss/w"},
             "mysql://me:p%40ss%2Fw@db:3307/shop"),
            ({"NAME": "shop", "HOST": "", "PORT": "", "USER": "me"}, "mysql://me@localhost/shop"),
            ({"NAME": "shop", "HOST": "/run/s", "USER": "me"}, "mysql://me@/shop?socket=%2Frun%2Fs"),
            ({"NAME": "shop", "HOST": "db", "OPTIONS": {"unix_socket": "/run/s"}}, "mysql:///shop?socket=%2Frun%2Fs"),
        ],
    )  # fmt: skip
    def test_mysql_as_a_url(self, config: dict[str, Any], url: str) -> None:
        assert conf.mysql_url("default", config) == url
        assert parse_url(url).connect["database"] == "shop", "the store can read it"

    def test_mysql_with_an_authority_of_its_own(self) -> None:
        config = {"NAME": "shop", "HOST": "db", "OPTIONS": {"ssl": {"ca": "/ca.pem"}, "charset": "utf8mb4"}}
        url = conf.mysql_url("default", config)
        assert url == "mysql://db/shop?ssl_ca=%2Fca.pem"
        with pytest.raises(StoreURLError, match=r"ssl_ca='/ca\.pem' .* is no file"):
            parse_url(url)

    @pytest.mark.parametrize("option", ["ssl", "ssl_mode", "read_default_file"])
    def test_what_a_url_cannot_say_is_not_left_out(self, option: str) -> None:
        """Otherwise the store would use another server than Django, or connect without TLS."""
        config = {"NAME": "shop", "OPTIONS": {option: {"ca": "ca.pem", "cert": "me.pem"}}}
        with pytest.raises(UsageError, match=rf"DATABASES\['default'\]\['OPTIONS'\] has {option}, .*SAFE"):
            conf.mysql_url("default", config)

    def test_a_database_in_memory_is_a_store_in_memory(self) -> None:
        assert conf.sqlite_url("default", {"NAME": "file:memorydb_default?mode=memory"}) == "memory://django-default"

    @pytest.mark.parametrize(
        ("setting", "told"),
        [
            ({"ULR": "x"}, "ULR"),
            ({"URL": "sqlite:///x", "DATABASE": "other"}, "one of them"),
            ({"SCOPE": "nowhere.at_all"}, "cannot be imported"),
            ({"SAFE": object()}, "RetrySafe object"),
            ("postgresql://x", "give a dict"),
        ],
    )
    def test_a_wrong_setting_says_what_to_do(self, setting: Any, told: str) -> None:
        def read() -> None:
            conf.safe()
            conf.default_scope()

        with override_settings(RETRYSAFE=setting), pytest.raises(UsageError, match=told):
            read()

    def test_options_and_policies(self) -> None:
        setting = {
            "POLICY": {"busy": "wait"},
            "ROUTES": {"POST /x": {"mode": "optional"}, "POST /y": None},
            "WAITERS": 3,
        }
        with override_settings(RETRYSAFE=setting):
            settings = IdempotencyMiddleware(lambda request: None).settings
        assert settings.policy.busy == "wait"
        assert settings.routes.find("POST", "/y") is None

    def test_without_the_middleware_a_protected_view_does_not_run(self) -> None:
        request = RequestFactory().post("/pay")
        request.user = user()
        with pytest.raises(UsageError, match="MIDDLEWARE"):
            project.pay(request)
        get = RequestFactory().get("/pay", headers={"X-Tag": "-"})
        get.user, get.session = user(), {}
        assert project.pay(get).status_code == 201, "a safe method claims nothing"


def test_a_relative_name_is_made_absolute() -> None:
    assert conf.sqlite_url("default", {"NAME": "db.sqlite3"}) == f"sqlite:///{Path('db.sqlite3').absolute()}"
