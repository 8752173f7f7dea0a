"""What one operator may see and do, record by record and list by list; and tokens that are none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.console import ConsoleRequest, Operator
from retrysafe.console.csrf import COOKIE
from retrysafe.core.jobs import ListJobs
from retrysafe.core.keys import observed_namespace
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Record
from retrysafe.engine.why import DEAD_LETTER
from retrysafe.testing.builders import claim, suspect
from tests.console.conftest import JOB_ID, World
from tests.console.test_actions import BULK, crowd, fields, hidden_fields, letter, reread, rows
from tests.console.visitors import HOST, ORIGIN, Visitor, make_console, text_of

# Tokens -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"&csrf="], ids=["none", "empty"])
def test_a_browser_with_no_cookie_has_no_token_either(world: World, body: bytes) -> None:
    """No cookie and no field are equal, and are no token."""
    console = make_console(world.safe, actions=True)
    sent = f"because=x&attempt=1&began={world.uncertain.started}&outcome=did-not-happen".encode() + body
    headers = {"host": HOST, "origin": ORIGIN}
    path = f"/keys/{world.uncertain.id.hex()}/resolve"
    assert console.handle(ConsoleRequest("POST", path, "", headers, sent)).status == 403
    assert reread(world, world.uncertain) == world.uncertain


@pytest.mark.parametrize("token", ["", "x", "t" * 42, "t" * 44, "\xe9" * 43])
def test_a_short_token_is_none(world: World, token: str) -> None:
    visitor = Visitor(make_console(world.safe, actions=True))
    visitor.cookies = {COOKIE: token}
    sent = fields(world.uncertain, outcome="did-not-happen")
    assert visitor.post(f"/keys/{world.uncertain.id.hex()}/resolve", sent).status == 403
    assert reread(world, world.uncertain) == world.uncertain


@pytest.mark.parametrize(
    ("raw", "secure"),
    [
        ({"scheme": "https"}, True), ({"scheme": "http"}, False), ({"wsgi.url_scheme": "https"}, True),
        (SimpleNamespace(is_secure=lambda: True), True), (SimpleNamespace(is_secure=lambda: False), False),
    ],
)  # fmt: skip
def test_the_cookie_is_secure_over_https(world: World, raw: Any, secure: bool) -> None:
    asked = ConsoleRequest("GET", "/", "", {"host": HOST}, raw=raw)
    cookie = make_console(world.safe).handle(asked).header("set-cookie")
    assert cookie.endswith("; Secure") is secure


# Single records -----------------------------------------------------------------------------------


def deny(action: str) -> Any:
    """An operator who may see everything, and may not do this with a record."""
    return lambda operator, asked, record: record is None or asked != action


CASES = [
    ("resolve", "keys resolve", "uncertain"), ("release", "keys release", "lapsed"),
    ("forget", "keys forget", "completed"), ("reveal", "keys show", "completed"),
    ("resume", "operations resume", "run"), ("undo", "operations undo", "run"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "action", "name"), CASES, ids=[each[0] for each in CASES])
def test_an_action_with_the_record_is_asked_for(world: World, verb: str, action: str, name: str) -> None:
    record: Record = getattr(world, name)
    sent = fields(record, outcome="did-not-happen", leave_effects="1")
    path = f"/keys/{record.id.hex()}"
    refused = Visitor(make_console(world.safe, actions=True, authorize=deny(action)))
    assert f"{path}/{verb}" not in refused.get(path).body.decode(), "it is not drawn"
    assert refused.post(f"{path}/{verb}", sent).status == 403
    assert (reread(world, record), rows(world)) == (record, [])
    allowed = Visitor(make_console(world.safe, actions=True, authorize=deny("another")))
    assert f"{path}/{verb}" in allowed.get(path).body.decode()
    assert allowed.post(f"{path}/{verb}", sent).status in (200, 303)


def test_observed_records_are_only_shown(world: World) -> None:
    """What observe mode would have done is of the application, and is nobody's work."""
    do, scope = world.safe.store.execute, "observed-scope"
    found = do(claim("seen-1", now=1, scope=scope, namespace=observed_namespace(world.safe.namespace)))
    record = do(Lookup(found.record.id)).record
    assert record is not None
    visitor = Visitor(make_console(world.safe, actions=True))
    path = f"/keys/{record.id.hex()}"
    page = visitor.get(path)
    assert (page.status, b'<form class="act"' in page.body) == (200, False)
    for verb in ("resolve", "release", "forget", "reveal"):
        told = visitor.post(f"{path}/{verb}", fields(record, outcome="did-not-happen"))
        assert (told.status, "only shows" in text_of(told)) == (409, True)
    assert reread(world, record) == record


def test_a_run_that_was_not_shown_is_not_touched(world: World) -> None:
    visitor = Visitor(make_console(world.safe, actions=True))
    for verb in ("resume", "undo", "cancel"):
        for wrong in ({"attempt": str(world.run.attempt + 1)}, {"began": str(world.run.started - 1)}):
            told = visitor.post(f"/keys/{world.run.id.hex()}/{verb}", fields(world.run) | wrong)
            assert (told.status, "changed underneath" in text_of(told)) == (409, True)
    assert reread(world, world.run) == world.run


# Lists --------------------------------------------------------------------------------------------


def see_only(*names: str) -> Any:
    """An operator who sees records of these keys and no others."""

    def authorize(operator: Operator, action: str, record: Any) -> bool:
        return record is None or getattr(record, "key", "") in names

    return authorize


def test_lists_show_only_what_the_operator_may_see(world: World) -> None:
    do = world.safe.store.execute
    # A run that gave up: it is a dead letter of the page Outbox.
    stuck = do(claim("gave-up", now=1, target="pay@1", on_lapse="uncertain", kind="operation", scope="pay"))
    do(suspect(stuck, f"{DEAD_LETTER}: the provider said no", now=2))
    places = {
        "/keys?key=order-7&scope=acme": "order-7",
        "/operations": "order-9",
        "/outbox": "gave-up",
        "/outbox?dead=1": JOB_ID[:16],
    }
    whole, nothing = (
        Visitor(make_console(world.safe, actions=True, authorize=each))
        for each in (lambda *_: True, see_only("another"))
    )
    for path, shown in places.items():
        assert shown in text_of(whole.get(path)), path
        assert shown not in text_of(nothing.get(path)), path
    assert "order-7" in text_of(
        Visitor(make_console(world.safe, authorize=see_only("order-7"))).get("/keys?key=order-7&scope=acme")
    )


# Many at once -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/bulk", "/bulk/confirm", "/outbox/bulk", "/outbox/bulk/confirm", f"/outbox/{JOB_ID}/drop"]
)
def test_the_whole_action_is_asked_for_before_its_rows(world: World, path: str) -> None:
    crowd(world, 1)

    def authorize(operator: Operator, action: str, record: Any) -> bool:
        return action == "look" or record is not None

    visitor = Visitor(make_console(world.safe, actions=True, authorize=authorize))
    sent = {**BULK, "verb": "drop" if "outbox" in path else "keys resolve", "topic": "", "as_of": "1"}
    row = f"{JOB_ID}:1" if "outbox" in path else f"{world.uncertain.id.hex()}:1"
    assert visitor.post(path, {**sent, **letter(world, JOB_ID, "x"), "row": row}).status == 403
    assert reread(world, world.uncertain) == world.uncertain
    assert [each.job.id for each in world.safe.store.execute(ListJobs(dead=True))] == [JOB_ID]


def test_jobs_that_an_operator_may_not_drop_stay(world: World) -> None:
    everything = Visitor(make_console(world.safe, actions=True))
    sent = {"verb": "drop", "topic": "", "cap": "10", "because": "not wanted"}
    preview = everything.post("/outbox/bulk", sent)
    assert JOB_ID[:16] in text_of(preview)
    careful = Visitor(make_console(world.safe, actions=True, authorize=deny("outbox drop")))
    assert JOB_ID[:16] not in text_of(careful.post("/outbox/bulk", sent))
    done = careful.post("/outbox/bulk/confirm", hidden_fields(preview.body))
    assert "0 changed, 1 skipped." in text_of(done)
    assert careful.post(f"/outbox/{JOB_ID}/drop", letter(world, JOB_ID, "not wanted")).status == 403
    assert [each.job.id for each in world.safe.store.execute(ListJobs())] == [JOB_ID]


def test_a_row_of_another_application_is_gone(world: World) -> None:
    crowd(world, 1)
    other = RetrySafe(world.safe.url, namespace="other")
    theirs = other.store.execute(claim("theirs", now=1, namespace="other", target="POST /bulk")).record
    visitor = Visitor(make_console(world.safe, actions=True))
    sent = hidden_fields(visitor.post("/bulk", BULK | {"target": "POST /bulk"}).body)
    done = text_of(visitor.post("/bulk/confirm", [*sent, ("row", f"{theirs.id.hex()}:1")]))
    assert "1 changed, 1 skipped." in done
    assert "it is gone" in done
    assert other.store.execute(Lookup(theirs.id)).record == theirs
    other.close()


def test_each_row_has_its_fence(world: World) -> None:
    """A row that is taken over after it was read for the last time, and before it is changed: nobody asks again."""
    names = {"scope": "acme", "target": "POST /held", "on_lapse": "rerun"}
    do = world.safe.store.execute
    do(claim("held", now=9, **names))  # type: ignore[arg-type]
    taken: list[Record] = []

    def authorize(operator: Operator, action: str, record: Any) -> bool:
        if confirming and action == "keys release" and record is not None and not taken:
            taken.append(do(claim("held", now=5_000, **names)).record)  # type: ignore[arg-type]
        return True

    confirming = False
    visitor = Visitor(make_console(world.safe, actions=True, authorize=authorize))
    wanted = {**BULK, "verb": "keys release", "state": "lapsed", "target": "POST /held"}
    preview = visitor.post("/bulk", wanted)
    confirming = True
    done = text_of(visitor.post("/bulk/confirm", hidden_fields(preview.body)))
    assert taken[0].attempt == 2
    assert "0 changed, 1 skipped." in done
    assert reread(world, taken[0]) == taken[0]


# Files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..", ".", "VENDORED.md", "LICENSE.htmx", "console.py", "console.css ", "\0"])
def test_a_file_that_is_no_asset_is_not_sent(world: World, name: str) -> None:
    assert Visitor(make_console(world.safe)).get(f"/static/{name}").status == 404


# Forms --------------------------------------------------------------------------------------------


def test_only_what_an_operator_may_do_with_letters_is_drawn(world: World) -> None:
    """Both actions on all dead letters were drawn, and refused when they were chosen."""

    def authorize(operator: Operator, action: str, record: Any) -> bool:
        return action in ("look", "outbox retry")

    page = Visitor(make_console(world.safe, actions=True, authorize=authorize)).get("/outbox?dead=1").body.decode()
    assert ('value="retry"' in page, 'value="drop"' in page) == (True, False)
    assert (f"/outbox/{JOB_ID}/retry" in page, f"/outbox/{JOB_ID}/drop" in page) == (True, False)
    looks_only = Visitor(
        make_console(world.safe, actions=True, authorize=lambda operator, asked, record: asked == "look")
    )
    shown = looks_only.get("/outbox?dead=1").body.decode()
    assert ("All that match" in shown, "act-here" in shown, ">Act<" in shown) == (False, False, False)


def test_no_bulk_form_is_drawn_for_one_key(world: World) -> None:
    """It was drawn, and the next page refused it."""
    visitor = Visitor(make_console(world.safe, actions=True))
    assert "All that match" in text_of(visitor.get("/keys?state=uncertain&scope=acme"))
    assert "All that match" not in text_of(visitor.get("/keys?state=uncertain&key=order-7"))
