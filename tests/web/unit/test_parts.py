"""The parts without a framework: routes, problems, stored headers, keys, traffic, tokens, options."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from retrysafe import Policy
from retrysafe.engine.problem_documents import DOCS_URL, Problem
from retrysafe.errors import MalformedKey, UsageError
from retrysafe.web import problems
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.capture import DROPPED, BadHeader, DroppedHeaders, read_raw_headers
from retrysafe.web.key_header import KeyRule, quote_key, read_key
from retrysafe.web.key_usage import MAX_CLIENTS, KeyUsageStats, hash_client
from retrysafe.web.problems import Codes
from retrysafe.web.routes import MAX_REMEMBERED_PATHS, PROTECTED_METHODS, Route, RouteTable
from retrysafe.web.status import StatusToken
from retrysafe.web.traffic import Quota, Quotas, RouteDurations, SlidingWindowSum, Waiters
from retrysafe.web.view import HeaderView, RawHeaderView, view_from_environ, view_from_scope
from tests.web.unit.harness import Counting, World, call, scope_of, who

# Routes -------------------------------------------------------------------------------------------


def routes(listed: dict[str, Any]) -> RouteTable:
    return RouteTable(Policy(), listed, PROTECTED_METHODS, None)


def test_remembered_paths_are_bounded() -> None:
    table = routes({"POST /orders/{id}": Policy(lease=1), "POST /left": None})
    for number in range(3 * MAX_REMEMBERED_PATHS):
        found = table.find("POST", f"/orders/{number}")
        assert found is not None
        assert found is table.find("POST", f"/orders/{number}")
    assert len(table._found) <= MAX_REMEMBERED_PATHS
    long = "/" + "x" * 5_000
    assert table.find("POST", long) is not None
    assert ("POST", long) not in table._found
    assert table.find("POST", "/left") is table.find("POST", "/left") is None


def test_a_route_is_found_by_method_and_path() -> None:
    pay, files, exact = Policy(lease=1), Policy(lease=2), Policy(lease=3)
    table = routes({"POST /orders/{id}/pay": pay, "PUT /files/{name:path}": files, "post /orders/7/pay": exact})

    def lease(method: str, path: str) -> float:
        found = table.find(method, path)
        assert found is not None
        return found.policy.lease

    assert lease("POST", "/orders/8/pay") == 1
    assert lease("POST", "/orders/7/pay") == 3, "an exact path wins"
    assert lease("PUT", "/files/a/b/c") == 2
    assert lease("POST", "/orders/8/9/pay") == Policy().lease
    assert lease("POST", "/orders/8/pay/") == Policy().lease
    assert lease("PUT", "/orders/8/pay") == Policy().lease


def test_a_dot_in_a_pattern_is_a_dot() -> None:
    table = routes({"POST /a.b/{id}": Policy(lease=1)})
    found = table.find("POST", "/axb/1")
    assert found is not None
    assert not found.listed


def test_a_target_names_the_pattern_and_is_bounded() -> None:
    table = routes({"POST /o/{id}": Policy()})
    listed, other = table.find("POST", "/o/7"), table.find("POST", "/" + "x" * 999)
    assert listed is not None
    assert other is not None
    assert (listed.target, listed.listed) == ("POST /o/{id}", True)
    assert len(other.target) == 200


def test_none_leaves_a_route_alone_and_a_new_method_only_where_it_is_listed() -> None:
    table = routes({"POST /login": None, "LOCK /doc": Policy()})
    assert table.find("POST", "/login") is None
    assert "LOCK" in table.methods
    assert table.find("LOCK", "/doc") is not None
    assert table.find("LOCK", "/other") is None


@pytest.mark.parametrize("name", ["/pay", "POST", "POST pay", "GET /pay", "POST /{a-b}", "POST /a}", ""])
def test_a_route_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="route"):
        routes({name: Policy()})


def test_a_route_takes_a_policy_a_route_or_none() -> None:
    assert routes({"POST /a": Route(Policy(), target="charge")}).find("POST", "/a").target == "charge"  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="give a Policy"):
        routes({"POST /a": {"mode": "required"}})


# Problems -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", problems.ALL_PROBLEMS, ids=lambda one: one.anchor)
def test_s31_every_problem_says_what_to_do_and_nothing_else(problem: Problem) -> None:
    told = problems.build_problem_response(problem, Codes(), retry_after=3)
    body, headers = json.loads(told.body), dict(told.headers)
    assert list(body) == ["type", "title", "status", "detail", "retry_same_key", "safe_new_key"]
    assert body["type"] == f"{DOCS_URL}/{problem.anchor}/"
    assert body["status"] == told.status
    assert headers["content-type"] == "application/problem+json"
    assert headers["cache-control"] == "no-store"
    assert headers["retry-after"] == "3"
    assert headers["link"] == f'<{body["type"]}>; rel="describedby"'
    assert headers["content-length"] == str(len(told.body))


def test_problem_types_are_stable() -> None:
    """Clients compare these texts: adding one is fine, changing one is not."""
    assert {problem.anchor for problem in problems.ALL_PROBLEMS} >= {
        "answer-gone", "corrupt-record", "failed", "failed-for-now", "in-progress", "lease-lost", "malformed-key",
        "misconfigured", "mismatch", "missing-key", "outcome-unknown", "outcome-unrecorded", "quota",
        "status-not-found", "store-unavailable", "too-large", "too-slow", "unprotected", "unreadable-body",
    }  # fmt: skip


async def test_codes_are_configurable() -> None:
    """Stripe answers a mismatch with 400, Square with 409."""
    middleware = IdempotencyMiddleware(Counting(), safe=World().safe, scope=who, codes=Codes(mismatch=400, missing=428))
    await call(middleware)
    assert (await call(middleware, None, b"other")).status == 400
    assert (await call(middleware, scope_of(key=None))).status == 428
    with pytest.raises(UsageError, match="mismatch"):
        Codes(mismatch=200)


# Headers ------------------------------------------------------------------------------------------


def test_s9_what_is_kept_and_what_is_not() -> None:
    kept = ["content-type", "Location", "ETag", "X-Custom", "Vary", "content-encoding", "link", "retry-after"]
    dropped = [
        "Set-Cookie", "DATE", "server", "Connection", "transfer-encoding", "content-length", "X-RateLimit-Limit",
        "RateLimit-Policy", "x-request-id", "traceparent", "Proxy-Authenticate", "WWW-Authenticate", "x-b3-traceid",
    ]  # fmt: skip
    names = [name for name, _ in DroppedHeaders(DROPPED).filter_headers([(name, "v") for name in kept + dropped])]
    assert names == kept


def test_the_list_is_configurable() -> None:
    assert "x-mine" in DroppedHeaders(["X-Mine", "x-tmp-*"])
    assert "X-Tmp-1" in DroppedHeaders(["X-Mine", "x-tmp-*"])
    with pytest.raises(UsageError, match="dropped"):
        DroppedHeaders(["a b"])


def test_views_are_alike_in_both_colours() -> None:
    environ = {
        "REQUEST_METHOD": "POST", "SCRIPT_NAME": "/api", "PATH_INFO": "/caf\xc3\xa9", "QUERY_STRING": "a=1",
        "CONTENT_TYPE": "text/plain", "CONTENT_LENGTH": "", "HTTP_X_A": "1", "REMOTE_ADDR": "127.0.0.1",
    }  # fmt: skip
    headers = [(b"content-type", b"text/plain"), (b"x-a", b"1")]
    scope = scope_of(path="/api/café", query_string=b"a=1") | {"headers": headers}
    one, two = view_from_environ(environ), view_from_scope(scope)
    assert (one.method, one.path, one.query, one.client) == (two.method, two.path, two.query, two.client)
    assert dict(one.headers) == dict(two.headers)
    assert one.headers["Content-Type"] == "text/plain"
    assert HeaderView([("A", "1"), ("a", "2")])["a"] == "1, 2"
    assert "secret" not in repr(HeaderView([("authorization", "secret")]))


def test_headers_of_a_scope_are_read_as_any_others() -> None:
    pairs = [("A", "1"), ("b", "caf\xe9"), ("a", "2"), ("authorization", "secret")]
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
    mine, others = RawHeaderView(raw), HeaderView(pairs)
    raw.clear()
    assert dict(mine) == dict(others), "and what happens to the scope later does not matter"
    assert (len(mine), list(mine), repr(mine)) == (len(others), list(others), repr(others))
    for name in ("A", "a", "B", "none", "\u20ac"):
        assert (mine.get(name, "-"), name in mine) == (others.get(name, "-"), name in others)
    with pytest.raises(KeyError):
        mine["none"]


def test_the_headers_of_an_answer_are_checked_as_they_are_read() -> None:
    raw = [(b"Content-Type", b"text/event-stream; charset=utf-8"), (b"x-a", b"caf\xe9")]
    assert read_raw_headers(raw) == ([("Content-Type", "text/event-stream; charset=utf-8"), ("x-a", "caf\xe9")], True)
    assert read_raw_headers([(b"content-type", b"text/plain")]) == ([("content-type", "text/plain")], False)
    assert read_raw_headers([(b"x-a", b"text/event-stream")])[1] is False
    for bad in ((b"x-a", b"1\r\nx-b: 2"), (b"x-a", b"\0"), (b"x a", b"1"), (b"", b"1"), (b"x-a\n", b"1")):
        with pytest.raises(BadHeader, match="line break or a bad name"):
            read_raw_headers([bad])


# Keys ---------------------------------------------------------------------------------------------


def test_s6_weak_keys_can_be_refused() -> None:
    strict = KeyRule(min_length=16)
    for weak in ("1", "2", "short"):
        with pytest.raises(MalformedKey):
            read_key([weak], strict)
    assert read_key(["8e03978e40d542dc"], strict) == "8e03978e40d542dc"


def test_s5_uuids_are_recognised_by_their_spelling() -> None:
    rule, good = KeyRule(uuid=True), "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    assert read_key([good], rule) == good
    for bad in (f"{{{good}}}", f"urn:uuid:{good}", good + "0"):
        with pytest.raises(MalformedKey):
            read_key([bad], rule)


def test_a_key_survives_being_quoted() -> None:
    for key in ("plain", 'with"quote', "back\\slash"):
        assert read_key([quote_key(key)], KeyRule()) == key


# Load ---------------------------------------------------------------------------------------------


def test_retry_after_follows_what_was_seen_and_stays_within_the_lease() -> None:
    durations = RouteDurations()
    assert durations.retry_after("r", 60) == 1
    durations.observe("r", 10)
    assert durations.retry_after("r", 60) == 10
    for _ in range(50):
        durations.observe("r", 0.1)
    assert durations.retry_after("r", 60) == 1
    durations.observe("s", 1000)
    assert durations.retry_after("s", 60) == 60


def test_waiters_are_counted() -> None:
    waiters = Waiters(1)
    assert [waiters.enter("a"), waiters.enter("a")] == [True, False]
    waiters.leave("a")
    assert waiters.enter("b")


def test_a_sliding_sum_forgets() -> None:
    sum_ = SlidingWindowSum()
    sum_.add(10, at=0, window=100)
    assert sum_.total_at(at=99, window=100) == 10
    assert sum_.total_at(at=100, window=100) == 10
    assert sum_.total_at(at=150, window=100) == 5
    assert sum_.total_at(at=400, window=100) == 0
    assert SlidingWindowSum().total_at(at=1, window=math.inf) == 0


def test_s7_quotas_are_for_each_scope() -> None:
    now = [0.0]
    quotas = Quotas(Quota(bytes=100), clock=lambda: now[0])
    quotas.record_start("a", True, 60)
    quotas.record_end("a", 100, 60)
    assert quotas.is_exceeded("a", 60)
    assert not quotas.is_exceeded("b", 60)
    now[0] = 200.0
    assert not quotas.is_exceeded("a", 60)
    with pytest.raises(UsageError, match="live"):
        Quota(live=0)


def test_the_census_is_bounded_and_knows_nobody_by_name() -> None:
    census = KeyUsageStats()
    for number in range(MAX_CLIENTS + 50):
        census.count("POST /a", f"client-{number}", "keyed")
    table = census.table()
    assert len(table) == MAX_CLIENTS
    assert table["POST /a", "other", "keyed"] == 51
    assert not any("client-" in client for _, client, _ in table)


async def test_the_census_tells_who_sends_keys() -> None:
    alice = hash_client("alice")
    policies = {f"POST /{mode}": Policy(mode=mode) for mode in ("observe", "optional", "generate")}
    middleware = IdempotencyMiddleware(Counting(), safe=World().safe, scope=who, routes=policies)
    for mode in ("observe", "optional", "generate"):
        for key in (None, "k", "k"):
            await call(middleware, scope_of(path=f"/{mode}", key=key and mode + key))
    await call(middleware, scope_of(path="/observe", key="a,b"))
    assert middleware.settings.census.table() == {
        ("POST /observe", alice, "missing"): 1,
        ("POST /observe", alice, "keyed"): 2,
        ("POST /observe", alice, "would_run"): 1,
        ("POST /observe", alice, "would_replay"): 1,
        ("POST /observe", alice, "malformed"): 1,
        ("POST /optional", "", "missing"): 1,
        ("POST /optional", alice, "keyed"): 2,
        ("POST /generate", alice, "generated"): 1,
        ("POST /generate", alice, "keyed"): 2,
    }


# Status tokens and options ------------------------------------------------------------------------


def test_a_status_token_comes_back_and_nothing_else_does() -> None:
    token = StatusToken(bytes(range(32)), bytes(16))
    assert StatusToken.parse(str(token)) == token
    for bad in ("", "x", "é", str(token)[:-4], str(token) + "AAAA", str(token)[:-1] + "!"):
        assert StatusToken.parse(bad) is None


@pytest.mark.parametrize(
    "options",
    [{"read_timeout": 0}, {"grace": -1}, {"methods": ["GET"]}, {"scope": "alice"}, {"polcy": Policy()},
     {"policy": Policy(busy="accepted")}],
    ids=str,
)  # fmt: skip
def test_a_wrong_option_is_found_at_start(options: Any) -> None:
    with pytest.raises(UsageError):
        IdempotencyMiddleware(Counting(), safe=World().safe, **options)
    with pytest.raises(UsageError, match="RetrySafe"):
        IdempotencyMiddleware(Counting(), safe="sqlite:///x.db")  # type: ignore[arg-type]
