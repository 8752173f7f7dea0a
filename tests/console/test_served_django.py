"""The console of a Django project under real servers (WSGI and ASGI), with our own bytes on the wire: below an address
of its own, read-only below another, and in the admin site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

import httpx
import pytest

from retrysafe import RetrySafe
from retrysafe.console.route_list import ACTIONS, PAGES
from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.testing.builders import claim
from tests.browser.django_site import serve_django
from tests.console.test_served import TOKEN, exchange

ADMIN = "/admin/retrysafe/console"
PLACES = ("/ops", ADMIN)
SECURE = ("content-security-policy: ", "x-content-type-options: nosniff", "x-frame-options: deny")


class Attacked(NamedTuple):
    """A server, the sessions of three users, and a key that must not change."""

    port: int
    safe: RetrySafe
    sessions: dict[str, str]
    record: Record

    def send(self, line: str, *headers: str, body: bytes = b"", who: str = "boss", finished: bool = True) -> str:
        """One request; an address begins behind the host. An empty `who` has no cookie."""
        cookies = (f"Cookie: sessionid={self.sessions[who]}; retrysafe_console_csrf={TOKEN}",) if who else ()
        hosts = () if any(each.lower().startswith("host:") for each in headers) else (f"Host: 127.0.0.1:{self.port}",)
        lines = (f"{line} HTTP/1.1", *hosts, "Connection: close", *cookies, *headers, "", "")
        return exchange(self.port, "\r\n".join(lines).encode("latin-1") + body, finished=finished)

    def post(self, path: str, body: bytes, *headers: str, who: str = "boss", finished: bool = True) -> str:
        """A form of our own page, unless headers say otherwise."""
        given = [each.lower().partition(":")[0] for each in headers]
        own = () if {"origin", "sec-fetch-site"} & set(given) else (f"Origin: http://127.0.0.1:{self.port}",)
        length = () if {"content-length", "transfer-encoding"} & set(given) else (f"Content-Length: {len(body)}",)
        kind = "Content-Type: application/x-www-form-urlencoded"
        return self.send(f"POST {path}", *own, *length, kind, *headers, body=body, who=who, finished=finished)

    @property
    def form(self) -> bytes:
        """What resolves the key, if it is obeyed."""
        sent = {"csrf": TOKEN, "because": "x", "attempt": "1", "began": str(self.record.started)}
        return urlencode({**sent, "outcome": "did-not-happen"}).encode()

    def resolve(self, place: str) -> str:
        return f"{place}/keys/{self.record.id.hex()}/resolve"

    def check_unchanged(self) -> None:
        assert self.safe.store.execute(Lookup(self.record.id)).record == self.record


@pytest.fixture(scope="module", params=["gunicorn", "uvicorn"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, RetrySafe, dict[str, str]]]:
    folder = tmp_path_factory.mktemp(f"attacked-{request.param}")
    with serve_django(folder, request.param) as address, RetrySafe(f"sqlite:///{folder}/keys.db") as safe:
        sessions = {name: log_in(address, name) for name in ("boss", "helper", "guest")}
        yield int(urlsplit(address).port or 0), safe, sessions


def log_in(address: str, name: str) -> str:
    """The session cookie that Django gives for a password."""
    with httpx.Client(base_url=address, timeout=60) as client:
        client.get("/admin/login/")
        token = client.cookies["csrftoken"]
        sent = {"username": name, "password": "secret", "csrfmiddlewaretoken": token, "next": "/look/"}
        client.post("/admin/login/", data=sent)
        # The admin site refuses a guest's login, and starts no session.
        return client.cookies.get("sessionid", "")


@pytest.fixture
def attacked(served: tuple[int, RetrySafe, dict[str, str]]) -> Attacked:
    port, safe, sessions = served
    record = safe.store.execute(claim(f"key-{uuid4().hex[:8]}", target="POST /payments", now=9)).record
    return Attacked(port, safe, sessions, record)


def status_of(received: str) -> str:
    return received.split(" ", 2)[1] if received else ""


def addresses(record: Record) -> list[tuple[str, str]]:
    found = []
    for route in (*PAGES, *ACTIONS):
        path = route.pattern.replace("{name}", "console.css").replace("{verb}", "retry")
        found.append((route.method, path.replace("{id}", record.id.hex())))
    return found


def test_without_a_session_no_route_answers(attacked: Attacked) -> None:
    """Nobody, cookies that are no session, and two of them."""
    cookies = (
        "", "sessionid=", "sessionid=x", f"sessionid={'a' * 32}", f"sessionid={'x' * 6_000}", "sessionid=\xff\xfe",
        "sessionid=../../etc/passwd", 'sessionid="; sessionid=', "sessionid=a; sessionid=b", "sessionid",
        f"retrysafe_console_csrf={TOKEN}", f"{'n' * 100}=1; " * 30,
    )  # fmt: skip
    for place in (*PLACES, "/look"):
        for method, path in addresses(attacked.record):
            received = attacked.send(f"{method} {place}{path}", who="")
            assert status_of(received) in ("401", "302", "303"), (method, place, path, received[:200])
            assert attacked.record.key not in received
        for cookie in cookies:
            received = attacked.send(f"GET {place}/keys", f"Cookie: {cookie}", who="")
            assert status_of(received) in ("400", "401", "302", "303", "431"), (cookie, received[:200])
            received = attacked.post(attacked.resolve(place), attacked.form, f"Cookie: {cookie}", who="")
            assert status_of(received) in ("400", "401", "302", "303", "431"), (cookie, received[:200])
    attacked.check_unchanged()


def test_forms_of_other_sites_do_nothing(attacked: Attacked) -> None:
    own = f"http://127.0.0.1:{attacked.port}"
    headers: list[tuple[str, ...]] = [
        ("Origin: http://evil.test",), ("Origin: null",), (f"Origin: {own}.evil.test",), ("Origin: ",),
        (f"Origin: {own}@evil.test",), (f"Origin: {own}", "Origin: http://evil.test"),
        ("Origin: http://evil.test", f"Origin: {own}"), (f"Origin: {own}", f"Origin: {own}"),
        ("Sec-Fetch-Site: cross-site",), ("Sec-Fetch-Site: same-site",), ("Sec-Fetch-Site: none",),
        ("Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"),
        ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-origin"),
        ("Sec-Fetch-Site: cross-site", "Sec_Fetch_Site: same-origin"), ("Sec-Fetch-Site: cross-site", f"Origin: {own}"),
        ("Origin: http://evil.test", "X-Forwarded-Host: evil.test"), ("Origin: http://evil.test", "Host: evil.test"),
        ("Origin: http://evil.test", "Forwarded: host=evil.test"), ("Origin: http://evil.test", f"Referer: {own}/ops/"),
    ]  # fmt: skip
    for place in PLACES:
        for given in headers:
            received = attacked.post(attacked.resolve(place), attacked.form, *given)
            assert status_of(received) in ("400", "403"), (place, given, received[:200])
        for body in (attacked.form.replace(TOKEN.encode(), b"u" * 43), attacked.form.replace(b"csrf=", b"other=")):
            assert status_of(attacked.post(attacked.resolve(place), body)) == "403"
        length = f"Content-Length: {len(attacked.form)}"
        received = attacked.send(f"POST {attacked.resolve(place)}", length, body=attacked.form)
        assert status_of(received) == "403", "neither Origin nor Sec-Fetch-Site"
    attacked.check_unchanged()


def chunk(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


def test_forms_that_are_cut_or_too_large_are_not_obeyed(attacked: Attacked) -> None:
    pieces = "Transfer-Encoding: chunked"
    for place in PLACES:
        path, form = attacked.resolve(place), attacked.form
        long = f"Content-Length: {len(form) + 10}"
        assert status_of(attacked.post(path, form, long, finished=False)) in ("400", "")
        assert status_of(attacked.post(path, chunk(form), pieces, finished=False)) in ("400", "403", "")
        assert status_of(attacked.post(path, chunk(form)[:-20], pieces, finished=False)) in ("400", "403", "")
        wrong = b"zz\r\n" + form + b"\r\n0\r\n\r\n"
        assert status_of(attacked.post(path, wrong, pieces)) in ("400", "403", "")
        for length in ("x", "-1", "+5", "1e3", "0x10", " ", "9" * 30):
            received = attacked.post(path, form, f"Content-Length: {length}")
            assert status_of(received) in ("400", "403", "413", ""), length
        both = (pieces, f"Content-Length: {len(form)}")
        assert status_of(attacked.post(path, form, *both, finished=False)) in ("400", "403", "")
        twice = (f"Content-Length: {len(form)}", f"Content-Length: {len(form) - 3}")
        assert status_of(attacked.post(path, form, *twice)) in ("400", "403", "")
        for size in (600_000, 3_000_000):
            large = form + b"&x=" + b"x" * size
            received = attacked.post(path, large)
            assert status_of(received) in ("413", ""), received[:300]
            if received:
                assert [each for each in SECURE if each not in received] == []
            received = attacked.post(path, chunk(large) + b"0\r\n\r\n", pieces)
            # gunicorn: Django reads no body without a length, so its form is empty and has no token.
            assert status_of(received) in ("413", "403", ""), received[:300]
        many = form + b"".join(b"&row=%d" % n for n in range(3_000))
        assert status_of(attacked.post(path, many)) == "400"
    attacked.check_unchanged()


def test_other_methods_and_overrides_do_nothing(attacked: Attacked) -> None:
    for place in PLACES:
        path = attacked.resolve(place)
        for method in ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "BREW", "post"):
            received = attacked.send(
                f"{method} {path}", f"Origin: http://127.0.0.1:{attacked.port}",
                f"Content-Length: {len(attacked.form)}", body=attacked.form,
            )  # fmt: skip
            assert status_of(received) in ("400", "403", "404", "405", "501", ""), (method, received[:200])
        for override in ("X-HTTP-Method-Override: POST", "X-Method-Override: POST", "X-HTTP-Method: POST"):
            query = attacked.form.decode()
            assert status_of(attacked.send(f"GET {path}?_method=POST&{query}", override)) == "404"
        assert status_of(attacked.send(f"GET {place}/keys/{attacked.record.id.hex()}")) == "200", "and the key is there"
    attacked.check_unchanged()


TRICKS = (
    "//keys", "/./keys", "/../admin/", "/%2e%2e/admin/", "/keys/..;/audit", "/keys;x=1", "/;/keys", "/%2fkeys",
    "/keys%2f..%2faudit", "/keys%00", "/%00", "/static/..%2f..%2fconsole.py", "/static/%2e%2e/console.py",
    "/static/../../on_django.py", "/keys/\xff\xfe", "/%ff", "/%252e%252e/", "/keys\\..\\audit", "/KEYS", "/keys/",
    "/keys?key=%00&scope=%ff", f"/keys?key={'x' * 3_000}", "/static/console.css/", "/static//console.css",
    "/?x=%0d%0aa:b",
)  # fmt: skip


def test_tricks_with_the_path_show_nothing_and_break_nothing(attacked: Attacked) -> None:
    for place in (*PLACES, "/look"):
        for trick in TRICKS:
            outside = attacked.send(f"GET {place}{trick}", who="")
            assert status_of(outside) in ("301", "302", "303", "400", "401", "404"), (place, trick, outside[:200])
            assert attacked.record.key not in outside
            inside = attacked.send(f"GET {place}{trick}")
            assert status_of(inside) in ("200", "301", "302", "400", "404"), (place, trick, inside[:300])
            for shown in ("root:", "from __future__", "\r\na: b", "\r\na:b"):
                assert shown not in inside, (place, trick, shown)
            assert "location: http" not in inside.partition("\r\n\r\n")[0]
            assert "location: //" not in inside.partition("\r\n\r\n")[0]
    for line in ("GET http://evil.test/ops/keys", "GET //evil.test/ops/keys", "GET ops/keys", "GET *", "CONNECT a:1"):
        received = attacked.send(line, who="")
        assert status_of(received) not in ("200", "500"), (line, received[:200])
        assert attacked.record.key not in received
    for host in ("evil.test", "127.0.0.1.evil.test", "", "127.0.0.1@evil.test", "a b"):
        assert status_of(attacked.send("GET /ops/keys", f"Host: {host}")) == "400", host
    attacked.check_unchanged()


def test_who_may_only_look_changes_nothing(attacked: Attacked) -> None:
    """The read-only mount refuses at the route; staff of the admin site look; a user without rights sees nothing."""
    before = attacked.safe.store.execute(List(limit=1000)).records
    for method, path in addresses(attacked.record):
        if method == "POST":
            received = attacked.post(f"/look{path}", attacked.form)
            assert (status_of(received), "read-only" in received) == ("403", True), path
            received = attacked.post(f"{ADMIN}{path}", attacked.form, who="helper")
            assert status_of(received) in ("400", "403", "404"), (path, received[:200])
    assert '<form class="act"' not in attacked.send(f"GET /look/keys/{attacked.record.id.hex()}")
    assert attacked.record.key in attacked.send("GET /look/keys?state=uncertain", who="helper")
    for place in (*PLACES, "/look"):
        assert status_of(attacked.post(attacked.resolve(place), attacked.form, who="guest")) in ("401", "302", "403")
    assert attacked.safe.store.execute(List(limit=1000)).records == before


def test_a_whole_form_of_an_operator_is_obeyed(attacked: Attacked) -> None:
    """The other tests would pass under a server that obeys nothing."""
    for place in PLACES:
        record = attacked.safe.store.execute(claim(f"whole-{uuid4().hex[:8]}", now=9)).record
        one = attacked._replace(record=record)
        assert status_of(one.post(one.resolve(place), one.form)) == "303"
        found = attacked.safe.store.execute(Lookup(record.id)).record
        assert found is not None
        assert found.state is State.RELEASED
