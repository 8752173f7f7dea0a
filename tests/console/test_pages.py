"""What each page shows, and how much it reads for it."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.console.pages import keys as keys_page
from retrysafe.console.pages.record import SHOWN_HERE, describe_version
from retrysafe.console.rendering import HERE, show_distance
from retrysafe.console.timeline import build_timeline
from retrysafe.core.ops import List, Lookup, Op
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS, format_time
from retrysafe.core.trace_context import encode_traceparent
from retrysafe.engine import why
from retrysafe.errors import NotFinished, OperationChanged, OutcomeUnknown
from retrysafe.operations.journal import OperationJournal
from retrysafe.testing.builders import claim, suspect
from retrysafe.web.key_usage import KeyUsageStats
from tests.console.conftest import LONG_AGO, World, stage_dead_letter
from tests.console.test_actions import fields, letter
from tests.console.visitors import Markup, Visitor, make_console, text_of


@pytest.fixture
def visitor(world: World) -> Visitor:
    return Visitor(make_console(world.safe))


def test_now_says_what_is_stuck_and_how_old(world: World, visitor: Visitor) -> None:
    shown = text_of(visitor.get("/"))
    assert "Uncertain 1" in shown
    assert "Dead letters 1" in shown
    assert "exactly-once-capable" in shown or "best-effort" in shown
    assert "POST /payments" in shown


def test_now_counts_the_executions_that_were_prevented(safe: RetrySafe) -> None:
    @safe.once("n:{n}")
    def count(n: int) -> int:
        return n

    for _ in range(4):
        count(1)
    shown = text_of(Visitor(make_console(safe)).get("/"))
    assert "Executions prevented 3 of 4 claims" in shown


def test_now_counts_nothing_in_a_process_that_makes_no_claims(safe: RetrySafe) -> None:
    """A console in a process of its own said that 0 executions were prevented, in green."""
    shown = text_of(Visitor(make_console(safe)).get("/"))
    assert "Executions prevented – counted by the application, not in this process" in shown
    assert shown.index("Open keys by target") < shown.index("What came of claims"), "what is stuck comes first"


def test_now_shows_runs_that_wait_to_be_resumed(
    world: World, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose step failed is neither in progress nor uncertain: the first page did not show it at all."""
    page = visitor.get("/")
    assert "Runs at rest 1 " in text_of(page)
    assert "a worker resumes them" in text_of(page)
    assert [attrs for tag, attrs in Markup(page.body).tags if attrs.get("href") == "/operations"][1:], "a link to them"
    stop_another_run(world.safe)
    assert "Runs at rest 2 " in text_of(visitor.get("/"))
    monkeypatch.setattr("retrysafe.console.pages.now.SHOWN_RESTING", 1)
    assert "Runs at rest 1+ " in text_of(visitor.get("/"))


def test_now_has_no_card_of_runs_where_none_rests(safe: RetrySafe) -> None:
    assert "Runs at rest" not in text_of(Visitor(make_console(safe)).get("/"))


def stop_another_run(safe: RetrySafe) -> None:
    mail = safe.operation("mail")

    @mail.foreign(tries=1)
    def send(order: str, *, key: str) -> str:
        raise ConnectionError("the server is down")

    @mail.body
    def body(order: str) -> Answer:
        send(order)
        return Answer(201, {})

    with pytest.raises((NotFinished, OutcomeUnknown)):
        mail("o-1", key="m-1")


def test_moments_say_how_long_ago_they_were(world: World, visitor: Visitor) -> None:
    assert "1970-01-12T13:46:40Z 2" in text_of(visitor.get("/keys?state=uncertain"))
    assert " d ago" in text_of(visitor.get("/keys?state=uncertain"))
    assert "just now" in text_of(visitor.get("/keys?state=completed"))
    assert " d ago) claimed for the first time" in text_of(visitor.get(f"/keys/{world.uncertain.id.hex()}"))
    shown = text_of(visitor.get(f"/keys/{world.working.id.hex()}"))
    assert "min) the lease ends, if its owner does not renew it" in shown
    assert "(in 5" in shown or "(in 60 min" in shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "just now"), (119, "just now"), (120, "2 min ago"), (7200, "2 h ago"), (-1, "in a moment"), (-7200, "in 2 h")],
)
def test_ages_of_moments_change_by_the_minute(seconds: int, shown: str) -> None:
    """Not by the second: the part of a page that is asked for again stays the same, and is not sent again."""
    now = 10**15
    assert show_distance(now - seconds * SECOND_MICROS, now) == shown


@pytest.mark.parametrize(("query", "there", "absent"), [
    ("", {"order-7", "order-8", "order-1", "order-2", "import-3", "order-9"}, set()),
    ("?state=uncertain", {"order-7"}, {"order-8", "order-1", "import-3"}),
    ("?state=lapsed", {"order-7", "import-3"}, {"order-8"}),
    ("?state=completed", {"order-1"}, {"order-7", "order-2"}),
    ("?state=released", {"order-2", "order-9"}, {"order-7", "order-1"}),
    ("?kind=function", {"import-3"}, {"order-7"}),
    ("?target=load", {"import-3"}, {"order-7"}),
    ("?older_than=3600", {"order-7", "import-3"}, {"order-8", "order-1"}),
    ("?scope=importer", {"import-3"}, {"order-7"}),
    ("?key=order-7", {"order-7"}, {"order-8"}),
    ("?key=order-7&scope=acme", {"order-7"}, {"order-8"}),
    ("?key=order-7&scope=importer", set(), {"order-8"}),
])  # fmt: skip
def test_keys_are_filtered_by_the_address(visitor: Visitor, query: str, there: set[str], absent: set[str]) -> None:
    page = visitor.get(f"/keys{query}").body
    rows = [attrs for tag, attrs in Markup(page).tags if tag == "tr" and "id" in attrs]
    shown = Markup(page.partition(b"<table>")[2].partition(b"</table>")[0]).text
    assert {key for key in there if key in shown} == there
    assert not {key for key in absent if key in shown}
    assert len(rows) == len(there)


@pytest.mark.parametrize(
    "query", ["?state=odd", "?kind=odd", "?older_than=-1", "?older_than=x", "?cursor=zz", "?state=uncertain&cursor=a:"]
)
def test_a_wrong_filter_is_said(visitor: Visitor, query: str) -> None:
    response = visitor.get(f"/keys{query}")
    assert response.status == 400
    assert query.rpartition("=")[2] in text_of(response)


def test_pages_go_on_where_the_last_one_ended(safe: RetrySafe, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(130):
        reply = safe.store.execute(claim(f"k{number}", now=1))
        if number % 2:
            safe.store.execute(suspect(reply, now=2))
    seen: set[str] = set()
    visitor, path, pages = Visitor(make_console(safe)), "/keys?state=uncertain", 0
    while path:
        found = Markup(visitor.get(path).body)
        rows = [str(attrs["id"]) for tag, attrs in found.tags if tag == "tr" and "id" in attrs]
        assert not seen & set(rows), "no key is shown twice"
        seen |= set(rows)
        nexts = [attrs["href"] for tag, attrs in found.tags if tag == "a" and "cursor=" in str(attrs.get("href"))]
        path, pages = (str(nexts[0]) if nexts else ""), pages + 1
    assert len(seen) == 130, "marked ones, and lapsed guards"
    assert pages >= 3


def test_an_empty_store_has_nothing_to_examine(safe: RetrySafe) -> None:
    """It said "1 examined", to somebody who looked at it for the first time."""
    for path in ("/keys", "/keys?state=uncertain"):
        assert "0 shown, 0 examined." in text_of(Visitor(make_console(safe)).get(path))


def test_a_page_reads_a_bounded_number_of_records(safe: RetrySafe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_page, "EXAMINED_ROWS", 100)
    safe.store.execute_many([claim(f"k{number}", now=None) for number in range(400)])
    read = 0
    execute = safe.execute

    def counting(op: Op[Any]) -> Any:
        nonlocal read
        reply = execute(op)
        read += len(reply.records) if isinstance(op, List) else 0
        return reply

    monkeypatch.setattr(safe, "execute", counting)
    response = Visitor(make_console(safe)).get("/keys?target=nothing")
    assert read <= 150
    assert "Next page" in text_of(response), "it says where to go on"


def test_one_key_says_why_and_what_the_next_retry_gets(world: World, visitor: Visitor) -> None:
    shown = text_of(visitor.get(f"/keys/{world.uncertain.id.hex()}"))
    assert "refused: outcome unknown" in shown
    assert "it stays until an operator" in shown
    assert "claimed for the first time" in shown
    shown = text_of(visitor.get(f"/keys/{world.completed.id.hex()}"))
    assert "the stored answer (201), and nothing runs" in shown
    assert "ch_secret" not in shown, "bodies are hidden"
    shown = text_of(visitor.get(f"/keys/{world.lapsed.id.hex()}"))
    assert "it runs: attempt 2" in shown


def test_a_key_that_changed_since_the_page_was_drawn_is_said(world: World, visitor: Visitor) -> None:
    path = f"/keys/{world.uncertain.id.hex()}"
    (drawn,) = [attrs["hx-get"] or "" for _, attrs in Markup(visitor.get(path).body).tags if "hx-get" in attrs]
    assert "changed since" not in text_of(visitor.get(drawn, hx_request="true"))
    assert "changed since" in text_of(visitor.get(f"{path}?seen=another", hx_request="true"))


def test_the_trace_of_the_first_run_is_a_link(safe: RetrySafe) -> None:
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    found = safe.store.execute(claim("k", input=encode_traceparent(parent), now=None)).record
    console = make_console(safe, trace_url="https://traces.test/{trace_id}?x=1")
    assert found is not None
    tags = Markup(Visitor(console).get(f"/keys/{found.id.hex()}").body).tags
    assert any(attrs.get("href") == f"https://traces.test/{'ab' * 16}?x=1" for tag, attrs in tags if tag == "a")


@pytest.mark.parametrize("digits", ["0" * 64, "zz" * 32, "12", "0" * 63 + "g"])
def test_a_key_that_is_not_there(visitor: Visitor, digits: str) -> None:
    assert visitor.get(f"/keys/{digits}").status == 404


def test_operations_are_drawn_with_where_their_runs_stand(world: World, visitor: Visitor) -> None:
    page = visitor.get("/operations")
    labels = [str(attrs["aria-label"]) for tag, attrs in Markup(page.body).tags if tag == "svg"]
    assert len(labels) == 1
    assert "steps of pay@1" in labels[0]
    assert "1 run here" in labels[0]
    assert "order-9" in text_of(page)
    run = text_of(visitor.get(f"/keys/{world.run.id.hex()}"))
    assert "charge done" in run.replace("–", "")
    assert "Next step" in run


def test_a_step_that_was_undone_was_not_undone_when_it_ran(world: World) -> None:
    """The timeline said "undone" at the time of the call, and the table "since" then."""
    ran, undone = 1_000 * SECOND_MICROS, 2_000 * SECOND_MICROS
    entry = {"step": "charge", "state": "undone", "error": "", "at": ran, "undo_at": undone}
    told = {moment.at: moment.what for moment in build_timeline(world.run, 3_000 * SECOND_MICROS, (), [entry])}
    assert (told[ran], told[undone]) == ("step charge", "undo of charge: undone")
    visitor = Visitor(make_console(world.safe, actions=True))
    sent = fields(world.run, leave_effects="1", because="the customer left")
    assert visitor.post(f"/keys/{world.run.id.hex()}/undo", sent).status == 303
    found = world.safe.store.execute(Lookup(world.run.id)).record
    assert found is not None
    shown = text_of(visitor.get(f"/keys/{found.id.hex()}"))
    (charged, *_) = OperationJournal.decode(found.progress).entries
    assert charged.undo_at > charged.at
    assert f"charge undone {format_time(charged.undo_at)}" in shown


def test_the_outbox_shows_dead_letters_with_their_error(visitor: Visitor) -> None:
    shown = text_of(visitor.get("/outbox?dead=1"))
    assert "the mail server refused it" in shown
    assert "a@example.com" not in shown, "payloads are not shown"
    assert "No dead letter of this topic" in text_of(visitor.get("/outbox?dead=1&topic=other"))
    assert visitor.get("/outbox?after=x").status == 400


def test_a_store_without_an_outbox_says_so() -> None:
    with RetrySafe("memory://") as safe:
        safe.store.capabilities  # noqa: B018
        response = Visitor(make_console(safe)).get("/outbox")
        assert response.status == 200


def test_the_rollout_adds_up_what_processes_counted(safe: RetrySafe, tmp_path: Path) -> None:
    here, there = KeyUsageStats(), KeyUsageStats()
    here.count("POST /pay", "acme", "keyed")
    there.count("POST /pay", "other", "missing")
    there.write(tmp_path / "there.json")
    (tmp_path / "odd.json").write_text("{}")
    console = make_console(safe, census=[here, tmp_path / "there.json", tmp_path / "odd.json", tmp_path / "gone.json"])
    shown = text_of(Visitor(console).get("/rollout"))
    assert "POST /pay 2 1 1" in shown
    assert "not yet: missing" in shown
    assert "odd.json" in shown
    assert "gone.json" in shown
    exported = json.loads(Visitor(console).get("/rollout.json").body)
    assert sum(row["requests"] for row in exported) == 2
    assert Visitor(make_console(safe)).get("/rollout").status == 200


def test_the_doctor_shows_settings_and_how_to_mend_them(safe: RetrySafe) -> None:
    visitor = Visitor(make_console(safe))
    asked_anew = visitor.get("/doctor?again=1")
    assert (asked_anew.status, asked_anew.header("location")) == (303, "/doctor"), "an address that asks once"
    assert "exactly-once-capable" in text_of(visitor.follow(asked_anew))
    with RetrySafe("memory://") as weak:
        shown = text_of(Visitor(make_console(weak)).get("/doctor"))
    assert "best-effort" in shown
    assert "wrong" in shown


def test_audit_rows_are_shown_newest_first(world: World) -> None:
    visitor = Visitor(make_console(world.safe, actions=True))
    for record, verb in ((world.lapsed, "release"), (world.completed, "forget")):
        assert visitor.post(f"/keys/{record.id.hex()}/{verb}", fields(record, because=f"to {verb}")).status == 303
    shown = text_of(visitor.get("/audit"))
    assert shown.index("to forget") < shown.index("to release")
    only = text_of(visitor.get(f"/audit?record={world.lapsed.id.hex()[:12]}"))
    assert ("to release" in only, "to forget" in only) == (True, False)
    assert visitor.get("/audit?days=3").status == 400


def test_the_newest_audit_rows_are_shown_of_very_many(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows of the days were read, and the newest of those were called the newest."""
    monkeypatch.setattr("retrysafe.console.pages.audit.EXAMINED_ROWS", 12)
    monkeypatch.setattr("retrysafe.console.pages.audit.SHOWN_ROWS", 3)
    visitor = Visitor(make_console(world.safe, actions=True))
    for number in range(40):
        sent = fields(world.completed, because=f"look {number}.")
        assert visitor.post(f"/keys/{world.completed.id.hex()}/reveal", sent).status == 200
    shown = text_of(visitor.get("/audit"))
    assert shown.index("look 39.") < shown.index("look 38.") < shown.index("look 37.")
    assert "look 36." not in shown
    assert "older rows that were not read" in shown
    assert "look 39." in text_of(visitor.get(f"/audit?record={world.completed.id.hex()[:12]}"))


def test_a_fragment_has_an_etag_and_no_nonce(world: World, visitor: Visitor) -> None:
    for path in ("/keys", f"/keys/{world.uncertain.id.hex()}", "/operations", "/doctor"):
        first = visitor.get(path, hx_request="true")
        assert first.status == 200
        assert b"<html" not in first.body
        assert b"nonce" not in first.body
        again = visitor.get(path, hx_request="true", if_none_match=first.header("etag"))
        assert (again.status, again.body) == (304, b""), path


def test_a_fragment_that_shows_ages_changes_with_them(world: World, visitor: Visitor) -> None:
    """The same tag is the same page, and nothing is sent again. A second later the oldest job may be older."""
    for path in ("/outbox", "/"):
        first = visitor.get(path, hx_request="true")
        again = visitor.get(path, hx_request="true", if_none_match=first.header("etag"))
        same = again.header("etag") == first.header("etag")
        assert (again.status, again.body == b"") == ((304, True) if same else (200, False)), path


def test_pages_link_below_their_mount(world: World) -> None:
    visitor = Visitor(make_console(world.safe, actions=True, request_log="x.jsonl"), "/ops")
    for path in (
        "/",
        "/keys",
        f"/keys/{world.uncertain.id.hex()}",
        "/operations",
        "/outbox?dead=1",
        "/audit",
        "/requests",
    ):
        for tag, attrs in Markup(visitor.get(path).body).tags:
            for name in ("href", "src", "action", "hx-get"):
                value = str(attrs.get(name, "/ops/"))
                assert value.startswith(("/ops/", "#", "data:")), (path, tag, value)


def test_head_is_get_without_a_body(visitor: Visitor) -> None:
    response = visitor.send("HEAD", "/keys")
    assert (response.status, response.body) == (200, b"")


def test_a_store_that_is_out_of_reach_is_503(safe: RetrySafe, monkeypatch: pytest.MonkeyPatch) -> None:
    from retrysafe.errors import StoreUnavailable

    def fail(op: Any) -> Any:
        raise StoreUnavailable("the server is gone")

    console = make_console(safe)
    monkeypatch.setattr(safe, "execute", fail)
    response = Visitor(console).get("/keys")
    assert (response.status, "the server is gone" in text_of(response)) == (503, True)
    part = Visitor(console).get("/keys", hx_request="true")
    assert (part.status, b"<html" in part.body, "the server is gone" in text_of(part)) == (503, False, True)


def test_states_have_their_own_filter() -> None:
    assert {state.value for state in State} < set(keys_page.SHOWN_STATES)


def test_a_run_that_rests_is_found_among_any_number_of_others(
    world: World, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores have an index of them. The bound of the page cut the list all the same: on a large store the page showed
    only runs whose ids happened to be the first."""
    monkeypatch.setattr("retrysafe.console.pages.operations.EXAMINED_ROWS", 1)
    assert world.run.state is State.RELEASED
    for number in range(30):
        world.safe.store.execute(claim(f"k{number}", now=1))
    assert "order-9" in text_of(visitor.get("/operations"))


def test_pages_stay_bounded_when_very_many_are_uncertain(safe: RetrySafe, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incident leaves a million open records. Their index was read and sorted for each of twenty pages."""
    safe.store.execute_many([claim(f"k{number}", now=1) for number in range(60)])
    for name in ("keys.SCANNED_ROWS", "keys.EXAMINED_ROWS", "operations.EXAMINED_ROWS", "outbox.EXAMINED_ROWS"):
        monkeypatch.setattr(f"retrysafe.console.pages.{name}", 5)
    asked: list[List] = []
    execute = safe.execute

    def watching(op: Op[Any]) -> Any:
        asked.extend([op] if isinstance(op, List) else [])
        return execute(op)

    monkeypatch.setattr(safe, "execute", watching)
    visitor = Visitor(make_console(safe))
    for path in ("/keys?state=uncertain", "/operations", "/outbox"):
        assert visitor.get(path).status == 200
    assert {bool(op.examine) for op in asked} == {True}
    assert len(asked) < 12
    assert "more uncertain records than were read" in text_of(visitor.get("/outbox"))


def test_now_passes_over_a_bounded_number_of_others(safe: RetrySafe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an application that shares its store with one that has very many open keys."""
    for number in range(6):
        safe.store.execute(claim(f"k{number}", namespace="others", now=LONG_AGO))
    assert "No key is open." in text_of(Visitor(make_console(safe)).get("/"))
    monkeypatch.setattr("retrysafe.console.pages.now.PASSED_ROWS", 4)
    shown = text_of(Visitor(make_console(safe)).get("/"))
    assert "No key is open among those that were read" in shown
    assert "nothing waits for an operator" not in shown


def test_a_run_that_changed_code_refused_has_its_page(world: World) -> None:
    """After a deployment: the page of just that run was a failure, where the console acts."""
    with RetrySafe(world.safe.url) as deployed:
        pay = deployed.operation("pay")

        @pay.foreign()
        def another_step(*, key: str) -> str:
            return ""

        @pay.body
        def body(order: str) -> Answer:
            another_step()
            return Answer(201, {})

        with pytest.raises(OperationChanged):
            pay("o-1", key="order-9")
        for actions in (True, False):
            page = Visitor(make_console(deployed, actions=actions)).get(f"/keys/{world.run.id.hex()}")
            assert (page.status, "refused again by that code" in text_of(page)) == (200, True)
            assert (b'id="act-operations-resume"' in page.body) is actions


def test_every_action_that_can_apply_has_a_form() -> None:
    """The actions are words of why.py; a form is a file. The console shows what `operations show` prints."""
    named = set(re.findall(r'"((?:keys|operations) \w+)"', inspect.getsource(why)))
    forms = {path.stem.removeprefix("act_").replace("_", " ") for path in (HERE / "templates").glob("act_*.html")}
    assert named - SHOWN_HERE == forms


def test_an_audit_row_of_a_job_is_found_by_its_id_as_it_is_written(world: World) -> None:
    """What was asked for was made lower case, and the id of the job was not."""
    visitor = Visitor(make_console(world.safe, actions=True))
    stage_dead_letter(world.safe, "Receipt-7")
    assert visitor.post("/outbox/Receipt-7/drop", letter(world, "Receipt-7", "nobody reads it")).status == 303
    for wanted in ("Receipt-7", "receipt"):
        assert "nobody reads it" in text_of(visitor.get(f"/audit?record={wanted}"))
    assert "nobody reads it" not in text_of(visitor.get("/audit?record=other"))


def test_a_page_knows_that_other_actions_apply_than_those_it_draws(world: World) -> None:
    """A lease that lapsed while the page was open: "You can resolve it" led to no form, and nothing said why."""
    at_work = world.working
    drawn = describe_version(at_work, at_work.started)
    assert describe_version(at_work, at_work.lease_until - 1) == drawn
    assert describe_version(at_work, at_work.lease_until + 1) != drawn
    assert describe_version(at_work._replace(started=at_work.started + 1), at_work.started + 1) != drawn, "a new life"
