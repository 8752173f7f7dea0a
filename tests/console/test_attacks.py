"""What a hostile reviewer tried, on three stores: inputs that are no text, numbers that are none, old forms, records
that changed, operators who may not see, and audit rows as a target."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from retrysafe import RetrySafe
from retrysafe.console import ConsoleRequest, ConsoleResponse, Operator
from retrysafe.console.messages import MAX_FIELDS
from retrysafe.console.route_list import ACTIONS, PAGES
from retrysafe.core.jobs import FailJob, ListJobs, TakeJobs
from retrysafe.core.ops import List, Lookup, Reap
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.audit import AUDIT_KIND
from retrysafe.testing.builders import claim, complete
from tests.console.conftest import World, fill, stage_dead_letter
from tests.console.test_actions import fields, hidden_fields
from tests.console.visitors import HOST, ORIGIN, Visitor, make_console, text_of

HEADERS = (
    "content-security-policy", "x-content-type-options", "x-frame-options", "cache-control", "referrer-policy",
    "cross-origin-opener-policy", "cross-origin-resource-policy",
)  # fmt: skip


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    url = f"sqlite:///{tmp_path}/x.db" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    with RetrySafe(url, namespace=f"attack-{uuid4().hex[:8]}") as safe:
        safe.migrate()
        yield fill(safe)


def reread(safe: RetrySafe, record: Record) -> Record:
    found = safe.store.execute(Lookup(record.id)).record
    assert found is not None
    return found


def audit_rows(safe: RetrySafe) -> list[Record]:
    found = safe.store.execute(List(safe.namespace, kind=AUDIT_KIND, limit=1000)).records
    return list(found)


def find_faults(name: str, response: ConsoleResponse) -> list[str]:
    """What no answer may be: a failure of our own, or one without its headers, or with one of them twice."""
    names = Counter(each for each, _ in response.headers)
    wrong = [each for each in HEADERS if names[each] != 1]
    failed = response.status >= 500
    return [f"{response.status} {name[:60]} {wrong}"] if failed or wrong else []


# What is typed into an address or a form ----------------------------------------------------------


TEXTS = (
    "%00", "a%00b", "%ff%fe", "%ED%A0%80", "%F0%9F%92%A9", "%0d%0aset-cookie:%20a=b", "-1", "%C2%B2", "%D9%A3",
    "..%2f..%2fetc", "x" * 100_000, "9" * 5_000,
)  # fmt: skip
CURSORS = (
    "a", ":", "a:", "a:zz", "a:%00", f"a:{'0' * 64}", f"a:{'f' * 64}", "a:999:1", "a:0:x", "a:1:9999999999999999:00",
    "b:1", "g:x", "a:-1:-1:a", f"a:{'0' * 100_000}", "a:12:99999999999999999999:aa",
)  # fmt: skip
IDS = (" " * 64, "ab " * 21 + "a", "g" * 64, "\u0663" * 64, "0" * 64, "\0", "\ufffd", "..", "x" * 100_000)
PARAMETERS = {
    "/keys": ("state", "kind", "target", "scope", "key", "older_than", "cursor"),
    "/operations": ("state", "name"),
    "/outbox": ("dead", "topic", "after"),
    "/audit": ("days", "record"),
    "/rollout": ("clients",),
    "/nowhere": ("x",),
}


def test_no_text_of_an_address_makes_a_page_fail(stored: World) -> None:
    visitor = Visitor(make_console(stored.safe, actions=True))
    paths = [f"{path}?{name}={text}" for path, names in PARAMETERS.items() for name in names for text in TEXTS]
    paths += [f"/keys?key={text}&scope={text}" for text in TEXTS]
    paths += [f"/keys?state={state}&cursor={cursor}" for state in ("", "uncertain") for cursor in CURSORS]
    page = f"/keys/{stored.completed.id.hex()}"
    paths += [f"{page}?did={text}&seen={text}" for text in (*TEXTS, *IDS)]
    paths += [f"/keys/{text}" for text in IDS] + [f"/static/{text}" for text in IDS]
    paths.append("/keys?" + "&".join(f"a{n}=1" for n in range(MAX_FIELDS + 1)))
    assert [fault for path in paths for fault in find_faults(path, visitor.get(path))] == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "POST", "BREW", "get"])
@pytest.mark.parametrize("inside", [True, False], ids=["operator", "nobody"])
def test_every_answer_has_its_headers_whatever_the_method(world: World, method: str, inside: bool) -> None:
    who = Operator("ann") if inside else None
    visitor = Visitor(make_console(world.safe, actions=True, authenticate=lambda request: who))
    paths = [route.pattern.replace("{name}", "console.css") for route in (*PAGES, *ACTIONS)]
    paths += ["//evil.test/", "/keys/../audit", "/%2e%2e", "/static/../console.py", ""]
    found = {path: visitor.send(method, path) for path in paths}
    assert [fault for path, response in found.items() for fault in find_faults(path, response)] == []
    if not inside:
        assert {response.status for response in found.values()} == {401}


def test_a_failure_has_its_headers_too(world: World) -> None:
    def fail(operator: Operator, action: str, record: Any) -> bool:
        raise RuntimeError("no")

    response = Visitor(make_console(world.safe, authorize=fail)).get("/")
    assert response.status == 500
    assert find_faults("/", response._replace(status=200)) == []


@pytest.mark.parametrize(
    "origin", ["http://[", "http://[::1", "http://a:99999999", "//", "http://", "null", f"{ORIGIN}@evil.test"]
)
def test_an_origin_that_is_no_address_is_another_site(world: World, origin: str) -> None:
    visitor = Visitor(make_console(world.safe, actions=True))
    response = visitor.post(f"/keys/{world.uncertain.id.hex()}/resolve", fields(world.uncertain), origin=origin)
    assert response.status == 403


def test_a_form_of_too_many_fields_is_refused(world: World) -> None:
    visitor = Visitor(make_console(world.safe, actions=True))
    many = [("row", f"{'0' * 64}:{n}") for n in range(MAX_FIELDS)]
    assert visitor.post("/bulk/confirm", many).status == 400


@pytest.mark.parametrize("because", ["\0", "the bank\0says", "x" * 2_001, "  "])
def test_a_reason_that_cannot_be_kept_does_nothing(stored: World, because: str) -> None:
    """On PostgreSQL a NUL failed after the audit row was written, and the row stayed open."""
    visitor = Visitor(make_console(stored.safe, actions=True))
    for record, verb in ((stored.uncertain, "resolve"), (stored.lapsed, "release"), (stored.completed, "reveal")):
        sent = fields(record, because=because, outcome="did-not-happen")
        assert visitor.post(f"/keys/{record.id.hex()}/{verb}", sent).status == 400
        assert reread(stored.safe, record) == record
    assert audit_rows(stored.safe) == []


@pytest.mark.parametrize("status", ["000000200999", "99", "600", "9" * 5_000, "0x200", "-200", "200.0", ""])
def test_only_a_status_is_stored_as_one(world: World, status: str) -> None:
    """The first digits were checked and all were stored: retries got an answer that no server sends."""
    visitor = Visitor(make_console(world.safe, actions=True))
    sent = fields(world.uncertain, outcome="happened", with_answer="1", status=status, content_type="text/plain")
    assert visitor.post(f"/keys/{world.uncertain.id.hex()}/resolve", sent).status == 400
    assert reread(world.safe, world.uncertain) == world.uncertain


@pytest.mark.parametrize("content_type", ["", "json", "a/b\r\nset-cookie: x=y", "text/plain; \0", "text / html"])
def test_only_a_content_type_is_stored_as_one(world: World, content_type: str) -> None:
    visitor = Visitor(make_console(world.safe, actions=True))
    sent = fields(world.uncertain, outcome="happened", with_answer="1", status="200", content_type=content_type)
    assert visitor.post(f"/keys/{world.uncertain.id.hex()}/resolve", sent).status == 400
    assert reread(world.safe, world.uncertain) == world.uncertain


# Cookies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before", ['prefs={"a":1}', "a b=c", 'x="open', "=", "n@me=1", "a=[1,2]", "\xe9=1", "flag"], ids=repr
)
def test_a_cookie_of_the_application_does_not_hide_ours(world: World, before: str) -> None:
    """Python's parser gives up at a cookie that it does not understand. Every form was refused from then on."""
    console = make_console(world.safe, actions=True)
    visitor = Visitor(console)
    visitor.get("/")
    ((name, token),) = visitor.cookies.items()
    headers = {"host": HOST, "origin": ORIGIN, "cookie": f"{before}; {name}={token}; {name}=other; z=1"}
    body = urlencode({**fields(world.uncertain, outcome="did-not-happen"), "csrf": token}).encode()
    path = f"/keys/{world.uncertain.id.hex()}/resolve"
    assert console.handle(ConsoleRequest("POST", path, "", headers, body)).status == 303


def test_a_token_of_another_browser_is_refused(world: World) -> None:
    ann, bob = (Visitor(make_console(world.safe, actions=True)) for _ in range(2))
    ann.get("/")
    bob.get("/")
    ((name, token),) = ann.cookies.items()
    assert bob.cookies[name] != token
    body = urlencode({**fields(world.uncertain, outcome="did-not-happen"), "csrf": token}).encode()
    path = f"/keys/{world.uncertain.id.hex()}/resolve"
    assert bob.send("POST", path, body, origin=ORIGIN).status == 403
    del bob.cookies[name]
    assert bob.send("POST", path, body, origin=ORIGIN).status == 403, "an old page, after the cookie is gone"


# Audit rows ---------------------------------------------------------------------------------------


def test_an_audit_row_cannot_be_emptied(stored: World) -> None:
    """`forget` erased who had done what and why."""
    visitor = Visitor(make_console(stored.safe, actions=True))
    assert visitor.post(f"/keys/{stored.lapsed.id.hex()}/release", fields(stored.lapsed)).status == 303
    (row,) = audit_rows(stored.safe)
    refused = visitor.post(f"/keys/{row.id.hex()}/forget", fields(row))
    assert (refused.status, "audit row" in text_of(refused)) == (409, True)
    assert "/forget" not in visitor.get(f"/keys/{row.id.hex()}").body.decode(), "and is not drawn"
    assert reread(stored.safe, row) == row


# Who may see --------------------------------------------------------------------------------------


def test_nobody_acts_in_bulk_on_what_they_may_not_see(stored: World) -> None:
    """Who may look was asked of each record of a list, but not of a bulk action: it showed and changed all of them."""

    def authorize(operator: Operator, action: str, record: Any) -> bool:
        return action != "look" or record is None or getattr(record, "scope", "") == "importer"

    visitor = Visitor(make_console(stored.safe, actions=True, authorize=authorize))
    sent = {"verb": "keys resolve", "outcome": "did-not-happen", "because": "x", "cap": "10", "state": "uncertain"}
    shown = visitor.post("/bulk", sent)
    assert "order-7" not in text_of(shown)
    forged = {**sent, "as_of": str(stored.safe.store.execute(Lookup(bytes(32))).now)}
    done = visitor.post("/bulk/confirm", {**forged, "row": f"{stored.uncertain.id.hex()}:1"})
    assert "0 changed, 1 skipped." in text_of(done)
    assert "order-7" not in text_of(done)
    assert reread(stored.safe, stored.uncertain) == stored.uncertain
    if stored.safe.store.capabilities.outbox:
        (staged,) = stored.safe.store.execute(ListJobs(dead=True, namespace=stored.safe.namespace))
        letter = {"because": "x", "sequence": str(staged.sequence), "died": str(staged.due)}
        assert visitor.post(f"/outbox/{staged.job.id}/drop", letter).status == 403
        jobs = {"verb": "drop", "topic": "", "cap": "10", "because": "x"}
        assert staged.job.id[:16] not in text_of(visitor.post("/outbox/bulk", jobs))
        assert stored.safe.store.execute(ListJobs(namespace=stored.safe.namespace)) == (staged,)


# What changed between the page and the click ------------------------------------------------------


def test_a_key_that_was_claimed_anew_is_not_the_one_that_was_shown(stored: World) -> None:
    """Both are a first attempt: the page was bound to the number of the attempt alone."""
    do, visitor = stored.safe.store.execute, Visitor(make_console(stored.safe, actions=True))
    names = {"namespace": stored.safe.namespace, "scope": "acme", "target": "POST /payments"}
    first = do(claim("again", retention=1, now=1000, **names))
    page = visitor.get(f"/keys/{first.record.id.hex()}")
    old = [(name, value) for name, value in hidden_fields(page.body) if name in ("attempt", "began")]
    assert dict(old)["attempt"] == "1"
    do(complete(first, now=1001))
    do(Reap(limit=100, now=900_000 * SECOND_MICROS, namespace=stored.safe.namespace))
    second = do(claim("again", now=1_000_000, **names))
    assert (second.granted, second.record.attempt) == (True, 1)
    sent = {**dict(old), "because": "the bank says no", "outcome": "did-not-happen"}
    told = visitor.post(f"/keys/{first.record.id.hex()}/resolve", sent)
    assert (told.status, "changed underneath" in text_of(told)) == (409, True)
    assert reread(stored.safe, second.record) == second.record


def test_a_dead_letter_that_died_again_is_not_the_one_that_was_shown(world: World) -> None:
    visitor, do = Visitor(make_console(world.safe, actions=True)), world.safe.store.execute
    (staged,) = do(ListJobs(dead=True))
    shown = visitor.get("/outbox?dead=1")
    sent = {name: value for name, value in hidden_fields(shown.body) if name in ("sequence", "died")}
    bulk = visitor.post("/outbox/bulk", {"verb": "drop", "topic": "", "cap": "10", "because": "not wanted"})
    assert visitor.post(f"/outbox/{staged.job.id}/retry", {**sent, "because": "try"}).status == 303
    do(TakeJobs(1, b"t" * 16, 60 * SECOND_MICROS, namespace="default"))
    do(FailJob(staged.job.id, b"t" * 16, "another error", 0, True))
    told = visitor.post(f"/outbox/{staged.job.id}/drop", {**sent, "because": "not wanted"})
    assert (told.status, "nothing was done" in text_of(told)) == (409, True)
    confirmed = visitor.post("/outbox/bulk/confirm", hidden_fields(bulk.body))
    assert "0 changed, 1 skipped." in text_of(confirmed)
    assert [each.job.id for each in do(ListJobs(dead=True))] == [staged.job.id]


def test_a_dead_letter_is_found_however_many_are_before_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was searched for among the first, and a later one was "no dead letter any more"."""
    monkeypatch.setattr("retrysafe.console.actions.jobs.EXAMINED_ROWS", 1)
    last = uuid4().hex
    stage_dead_letter(world.safe, last, "mails")
    visitor = Visitor(make_console(world.safe, actions=True))
    staged = world.safe.store.execute(ListJobs(dead=True))[-1]
    sent = {"because": "it is back", "sequence": str(staged.sequence), "died": str(staged.due)}
    assert visitor.post(f"/outbox/{last}/retry", sent).status == 303
    assert [each.job.id for each in world.safe.store.execute(ListJobs()) if not each.dead] == [last]


def test_a_row_that_is_sent_twice_counts_once(world: World) -> None:
    visitor = Visitor(make_console(world.safe, actions=True))
    bulk = {"verb": "keys resolve", "outcome": "did-not-happen", "because": "x", "cap": "10", "state": "uncertain"}
    preview = hidden_fields(visitor.post("/bulk", bulk).body)
    rows = [pair for pair in preview if pair[0] == "row"]
    assert f"{len(rows)} changed, 0 skipped." in text_of(visitor.post("/bulk/confirm", preview + rows))
    jobs = hidden_fields(visitor.post("/outbox/bulk", {"verb": "retry", "topic": "", "cap": "9", "because": "x"}).body)
    again = [pair for pair in jobs if pair[0] == "row"]
    assert "1 changed, 0 skipped." in text_of(visitor.post("/outbox/bulk/confirm", jobs + again))


# Two operators at once ----------------------------------------------------------------------------


def at_once(*calls: Any) -> list[ConsoleResponse]:
    barrier, found = threading.Barrier(len(calls)), dict[int, ConsoleResponse]()

    def run(place: int, call: Any) -> None:
        barrier.wait()
        found[place] = call()

    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[place] for place in range(len(calls))]


def test_of_two_opposite_decisions_one_is_made_and_the_other_is_told(stored: World) -> None:
    ann, bob = (log_in(stored.safe, name) for name in ("ann", "bob"))
    for number in range(20):
        record = stored.safe.store.execute(claim(f"race-{number}", namespace=stored.safe.namespace, now=9)).record
        path = f"/keys/{record.id.hex()}/resolve"
        yes, no = at_once(
            lambda path=path, record=record: ann.post(path, fields(record, outcome="happened")),
            lambda path=path, record=record: bob.post(path, fields(record, outcome="did-not-happen")),
        )
        assert {yes.status, no.status} == {303, 409}
        after = reread(stored.safe, record)
        assert after.state is (State.COMPLETED if yes.status == 303 else State.RELEASED)
    rows = audit_rows(stored.safe)
    outcomes = Counter(each.answer.json()["outcome"] for each in rows if each.answer is not None)
    assert outcomes["done"] == 20
    assert len(rows) == sum(outcomes.values()), "no row is left open"


def test_a_bulk_action_against_single_decisions_changes_each_key_once(stored: World) -> None:
    ann, bob = (log_in(stored.safe, name) for name in ("ann", "bob"))
    made = [
        stored.safe.store.execute(claim(f"b-{n}", target="POST /b", namespace=stored.safe.namespace, now=9)).record
        for n in range(20)
    ]
    bulk = {"verb": "keys resolve", "outcome": "happened", "because": "all paid", "cap": "50", "state": "uncertain"}
    preview = hidden_fields(ann.post("/bulk", {**bulk, "target": "POST /b"}).body)

    def decide_one_by_one() -> ConsoleResponse:
        found = [bob.post(f"/keys/{each.id.hex()}/resolve", fields(each, outcome="did-not-happen")) for each in made]
        assert {each.status for each in found} <= {303, 409}
        return found[0]._replace(status=sum(each.status == 303 for each in found))

    done, single = at_once(lambda: ann.post("/bulk/confirm", preview), decide_one_by_one)
    states = Counter(reread(stored.safe, each).state for each in made)
    assert states[State.RELEASED] == single.status
    assert f"{states[State.COMPLETED]} changed, {single.status} skipped." in text_of(done)
    assert sum(states.values()) == states[State.RELEASED] + states[State.COMPLETED]


def log_in(safe: RetrySafe, name: str) -> Visitor:
    visitor = Visitor(make_console(safe, actions=True, authenticate=lambda request: Operator(name)))
    visitor.get("/")
    return visitor


def test_an_etag_of_one_operator_says_nothing_to_another(world: World) -> None:
    """Each page is made for who asks before it is compared: the same tag can only mean the same page."""

    def authorize(operator: Operator, action: str, record: Any) -> bool:
        return operator.name == "ann" or record is None or getattr(record, "scope", "") != "acme"

    ann, bob = (
        Visitor(make_console(world.safe, authorize=authorize, authenticate=lambda request, name=name: Operator(name)))
        for name in ("ann", "bob")
    )
    for path in ("/keys", "/operations", "/outbox", "/"):
        tag = ann.get(path, hx_request="true").header("etag")
        told = bob.get(path, hx_request="true", if_none_match=tag)
        assert told.header("cache-control") == "private, no-cache"
        assert told.header("vary") == "Cookie, HX-Request"
        assert b"order-7" not in told.body
        if path == "/keys":
            assert told.status == 200
