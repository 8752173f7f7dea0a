"""Who may come in, and what a request of somebody else can do. A route that is added is tested, too."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.console import Console, ConsoleRequest, Operator
from retrysafe.console.csrf import COOKIE
from retrysafe.console.route_list import ACTIONS, PAGES
from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.errors import SyncAsyncMismatch, UsageError
from tests.console.conftest import World
from tests.console.visitors import HOST, Markup, Visitor, make_console, text_of

ALL = (*PAGES, *ACTIONS)
FIELDS = {
    "because": "I looked", "attempt": "1", "outcome": "did-not-happen", "verb": "keys resolve", "cap": "10",
    "state": "uncertain", "as_of": "1", "topic": "",
}  # fmt: skip


def address(pattern: str, world: World) -> str:
    """A route with real ids in it, so that nothing but the check in question can refuse it."""
    name = "htmx.min.js" if "{name}" in pattern else ""
    record = world.completed if "forget" in pattern or "reveal" in pattern else world.uncertain
    found = pattern.replace("{name}", name).replace("{verb}", "retry" if "outbox" in pattern else "resume")
    job = "0f3a9c010f3a9c010f3a9c010f3a9c01"
    return found.replace("{id}", job if "outbox" in pattern else record.id.hex())


def see(record: Record) -> dict[str, str]:
    """What the page of a record puts into its forms."""
    return {"attempt": str(record.attempt), "began": str(record.started)}


def everything(safe: RetrySafe) -> Any:
    """All records and jobs, audit rows too."""
    from retrysafe.core.jobs import ListJobs

    return safe.store.execute(List(limit=1000)).records, safe.store.execute(ListJobs())


@pytest.mark.parametrize("route", ALL, ids=lambda route: f"{route.method} {route.pattern}")
def test_without_a_session_no_route_answers(world: World, route: Any) -> None:
    visitor = Visitor(make_console(world.safe, authenticate=lambda request: None, actions=True))
    before = everything(world.safe)
    response = visitor.send(route.method, address(route.pattern, world), b"because=x", origin=f"http://{HOST}")
    assert response.status == 401
    assert everything(world.safe) == before
    assert b"order-7" not in response.body


def test_a_visitor_without_a_session_is_sent_to_the_login(world: World) -> None:
    console = make_console(world.safe, authenticate=lambda request: None, login_url="/admin/login")
    assert Visitor(console).get("/keys").header("location") == "/admin/login"
    assert Visitor(console).get("/keys", hx_request="true").status == 401, "a fragment is not replaced by a login page"


@pytest.mark.parametrize("route", ACTIONS, ids=lambda route: route.pattern)
def test_a_console_without_actions_refuses_each_at_the_route(world: World, route: Any) -> None:
    visitor = Visitor(make_console(world.safe))
    before = everything(world.safe)
    response = visitor.post(address(route.pattern, world), FIELDS)
    assert (response.status, "read-only" in text_of(response)) == (403, True)
    assert everything(world.safe) == before


def test_the_routes_of_a_console_without_actions_only_show(safe: RetrySafe) -> None:
    assert {route.method for route in make_console(safe).routes.routes} == {"GET"}


FOREIGN = [
    {"origin": "http://evil.test"},
    {"origin": "null"},
    {"origin": f"http://{HOST}.evil.test"},
    {"origin": f"http://{HOST}", "sec_fetch_site": "cross-site"},
    {"origin": f"http://{HOST}", "sec_fetch_site": "same-site"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=lambda each: " ".join(each.values()))
@pytest.mark.parametrize("route", ACTIONS, ids=lambda route: route.pattern)
def test_a_form_of_another_site_does_nothing(world: World, route: Any, headers: dict[str, str]) -> None:
    visitor = Visitor(make_console(world.safe, actions=True))
    before = everything(world.safe)
    assert visitor.post(address(route.pattern, world), FIELDS, **headers).status == 403
    assert everything(world.safe) == before


@pytest.mark.parametrize("route", ACTIONS, ids=lambda route: route.pattern)
def test_a_form_without_its_token_or_its_origin_does_nothing(world: World, route: Any) -> None:
    visitor = Visitor(make_console(world.safe, actions=True))
    visitor.get("/")
    before = everything(world.safe)
    path = address(route.pattern, world)
    assert visitor.send("POST", path, b"because=x&attempt=1", origin=f"http://{HOST}").status == 403
    wrong = b"because=x&attempt=1&csrf=" + b"A" * 43
    assert visitor.send("POST", path, wrong, origin=f"http://{HOST}").status == 403
    token = next(iter(visitor.cookies.values())).encode()
    assert visitor.send("POST", path, b"because=x&attempt=1&csrf=" + token).status == 403, "no Origin at all"
    assert everything(world.safe) == before


def test_a_proxy_that_changes_the_host_is_named(world: World) -> None:
    path, proxied = f"/keys/{world.uncertain.id.hex()}/resolve", "https://ops.example.com"
    assert Visitor(make_console(world.safe, actions=True)).post(path, FIELDS, origin=proxied).status == 403
    console = make_console(world.safe, actions=True, origins=[proxied])
    assert Visitor(console).post(path, FIELDS | see(world.uncertain), origin=proxied).status == 303


@pytest.mark.parametrize("route", ALL, ids=lambda route: f"{route.method} {route.pattern}")
def test_an_operator_who_may_not_look_sees_nothing(world: World, route: Any) -> None:
    visitor = Visitor(make_console(world.safe, actions=True, authorize=lambda operator, action, record: False))
    send = visitor.post if route.acts else visitor.get
    response = send(address(route.pattern, world), FIELDS) if route.acts else send(address(route.pattern, world))
    assert response.status == 403
    assert b"order-7" not in response.body


def test_what_an_operator_may_do_depends_on_the_record(world: World) -> None:
    def authorize(operator: Operator, action: str, record: Any) -> bool:
        return record is None or getattr(record, "scope", "") != "acme"

    visitor = Visitor(make_console(world.safe, actions=True, authorize=authorize))
    listed = text_of(visitor.get("/keys"))
    assert ("import-3" in listed, "order-7" in listed) == (True, False)
    assert visitor.get(f"/keys/{world.uncertain.id.hex()}").status == 404
    assert visitor.post(f"/keys/{world.uncertain.id.hex()}/resolve", FIELDS).status == 404
    assert visitor.post(f"/keys/{world.lapsed.id.hex()}/release", FIELDS | see(world.lapsed)).status == 303


def test_a_record_of_another_application_is_none(world: World) -> None:
    other = RetrySafe(world.safe.url, namespace="other")
    visitor = Visitor(make_console(other, actions=True))
    assert visitor.get(f"/keys/{world.uncertain.id.hex()}").status == 404
    assert visitor.post(f"/keys/{world.uncertain.id.hex()}/resolve", FIELDS).status == 404
    assert "order-7" not in text_of(visitor.get("/keys"))
    other.close()


@pytest.mark.parametrize(
    "returned", [True, "ann", object(), Operator(""), Operator(" "), Operator(7)],  # type: ignore[arg-type]
    ids=["true", "text", "object", "nameless", "blank", "number"],
)  # fmt: skip
def test_an_answer_that_is_no_operator_opens_nothing(world: World, returned: Any) -> None:
    """`return True`, or an `async def`, whose coroutine is true as well."""
    visitor = Visitor(make_console(world.safe, authenticate=lambda request: returned, actions=True))
    for route in PAGES:
        assert visitor.get(address(route.pattern, world)).status == 500


def test_it_is_not_built_without_a_check_of_who_asks(safe: RetrySafe) -> None:
    for wrong in ({}, {"authenticate": None}, {"authenticate": "ann"}):
        with pytest.raises(UsageError, match="authenticate="):
            Console(safe, **wrong)
    with pytest.raises(UsageError, match="RetrySafe"):
        Console("sqlite:///x.db", authenticate=lambda request: None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="trace_id"):
        make_console(safe, trace_url="https://traces.test/")


class _AsyncRule:
    async def __call__(self, operator: Operator, action: str, record: Any) -> bool:
        return False


async def _refuse_all(operator: Operator, action: str, record: Any, more: str = "") -> bool:
    return False


async def _find_nobody(request: ConsoleRequest) -> Operator | None:
    return None


@pytest.mark.parametrize(
    "rule", [_refuse_all, _AsyncRule(), partial(_refuse_all, more="x")], ids=["function", "object", "partial"]
)
def test_a_rule_that_is_async_is_refused(safe: RetrySafe, rule: Any) -> None:
    """A coroutine is true: an `async def authorize` that refuses everything allowed everything."""
    with pytest.raises(UsageError, match=r"authorize=.*plain def"):
        make_console(safe, authorize=rule)
    with pytest.raises(UsageError, match=r"authenticate=.*plain def"):
        make_console(safe, authenticate=_find_nobody)


def test_an_answer_that_would_have_to_be_awaited_allows_nothing(world: World) -> None:
    class Later:
        def __await__(self) -> Any:
            yield

    visitor = Visitor(make_console(world.safe, actions=True, authorize=lambda *_: Later()))
    visitor.cookies = {COOKIE: "t" * 43}
    before = everything(world.safe)
    assert visitor.get("/keys").status == 500
    sent = FIELDS | see(world.uncertain)
    assert visitor.post(f"/keys/{world.uncertain.id.hex()}/resolve", sent).status == 500
    assert everything(world.safe) == before


def test_an_object_without_a_sync_store_is_refused() -> None:
    safe = RetrySafe(async_store=RetrySafe("memory://").async_store)
    with pytest.raises(SyncAsyncMismatch):
        make_console(safe)


STRICT = (
    "default-src 'none'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'", "connect-src 'self'",
    "require-trusted-types-for 'script'", "trusted-types htmx",
)  # fmt: skip


@pytest.mark.parametrize("route", PAGES, ids=lambda route: route.pattern)
def test_every_answer_has_the_headers_of_a_strict_page(world: World, route: Any) -> None:
    response = Visitor(make_console(world.safe)).get(address(route.pattern, world))
    assert response.status == 200
    assert response.header("x-content-type-options") == "nosniff"
    assert response.header("x-frame-options") == "DENY"
    if "html" in response.header("content-type"):
        policy = response.header("content-security-policy")
        assert policy.startswith("default-src 'none'; script-src 'nonce-")
        assert "unsafe" not in policy
        assert set(STRICT) <= set(policy.split("; "))
        nonce = re.search(r"nonce-([\w-]+)'", policy)
        assert nonce is not None
        assert response.body.count(f'nonce="{nonce[1]}"'.encode()) == 4, (
            "three scripts, and the element that asks again"
        )
        assert b"<style" not in response.body
        assert b" style=" not in response.body
        assert not re.search(rb" on\w+=", response.body)


def test_the_cookie_of_the_token_is_strict(world: World) -> None:
    set_cookie = Visitor(make_console(world.safe), "/ops").get("/").header("set-cookie")
    assert "HttpOnly" in set_cookie
    assert "SameSite=Strict" in set_cookie
    assert "Path=/ops" in set_cookie


def test_a_failure_of_our_own_shows_nothing(safe: RetrySafe, caplog: pytest.LogCaptureFixture) -> None:
    def authenticate(request: ConsoleRequest) -> Operator | None:
        raise RuntimeError("the password is hunter2")

    response = Visitor(make_console(safe, authenticate=authenticate)).get("/")
    assert (response.status, b"hunter2" in response.body) == (500, False)
    assert "the console failed" in caplog.text


def test_two_operators_doing_opposite_things_one_wins_and_the_other_is_told(world: World) -> None:
    ann = Visitor(make_console(world.safe, actions=True))
    bob = Visitor(make_console(world.safe, actions=True, authenticate=lambda request: Operator("bob")))
    path = f"/keys/{world.uncertain.id.hex()}/resolve"
    seen = FIELDS | see(world.uncertain)
    assert ann.post(path, seen | {"outcome": "happened"}).status == 303
    told = bob.post(path, seen)
    assert told.status == 409
    assert "order-7" in text_of(told)
    after = world.safe.store.execute(Lookup(world.uncertain.id)).record
    assert after is not None
    assert after.state.value == "completed", "the first decision stands"


def test_a_console_without_actions_draws_no_form_that_acts(world: World) -> None:
    visitor = Visitor(make_console(world.safe))
    records = (world.uncertain, world.lapsed, world.completed, world.run)
    paths = ["/keys?state=uncertain", "/outbox?dead=1", *(f"/keys/{each.id.hex()}" for each in records)]
    drawn = [attrs for path in paths for tag, attrs in Markup(visitor.get(path).body).tags if tag == "form"]
    assert {attrs["method"] for attrs in drawn} <= {"get"}
