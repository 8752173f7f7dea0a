"""What bounds a form, a session or a page, and what of a secret is kept nowhere."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from retrysafe import RetrySafe
from retrysafe.console import Console, ConsoleRequest
from retrysafe.console.access import Operator
from retrysafe.console.asgi import AsgiShell
from retrysafe.console.headers import say
from retrysafe.console.loopback import MAX_SESSIONS, LoopbackApp, OneTimeLogin, open_server
from retrysafe.console.rendering import SHOWN_BODY_BYTES
from retrysafe.console.request_log import RequestLog
from retrysafe.core.jobs import ListJobs
from retrysafe.core.ops import List
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.audit import AUDIT_KIND
from retrysafe.operators.session import Reason, open_on_safe
from retrysafe.testing.builders import claim, complete
from tests.console.conftest import World, stage_dead_letter
from tests.console.test_actions import BULK, fields, hidden_fields, reread
from tests.console.visitors import Visitor, make_console, text_of


@pytest.fixture
def visitor(world: World) -> Visitor:
    return Visitor(make_console(world.safe, actions=True))


# Bulk ---------------------------------------------------------------------------------------------


def test_a_bulk_action_as_of_a_time_to_come_is_refused(world: World, visitor: Visitor) -> None:
    """It would take keys that arrive after the preview."""
    sent = dict(hidden_fields(visitor.post("/bulk", BULK).body))
    later = str(int(sent["as_of"]) + 3600 * SECOND_MICROS)
    told = visitor.post("/bulk/confirm", {**sent, "as_of": later})
    assert (told.status, "as_of" in text_of(told)) == (400, True)
    assert reread(world, world.uncertain) == world.uncertain


def test_a_dead_letter_of_after_the_preview_is_skipped(world: World, visitor: Visitor) -> None:
    (staged,) = world.safe.store.execute(ListJobs(dead=True))
    sent = dict(hidden_fields(visitor.post("/outbox/bulk", {**JOBS, "cap": "10"}).body))
    done = visitor.post("/outbox/bulk/confirm", {**sent, "as_of": str(staged.created - 1)})
    assert "0 changed, 1 skipped." in text_of(done)
    assert world.safe.store.execute(ListJobs(dead=True)) == (staged,)


def test_more_dead_letters_than_the_cap_are_refused(world: World, visitor: Visitor) -> None:
    stage_dead_letter(world.safe, "1f3a9c010f3a9c010f3a9c010f3a9c01")
    preview = hidden_fields(visitor.post("/outbox/bulk", {**JOBS, "cap": "10"}).body)
    assert len([name for name, _ in preview if name == "row"]) == 2
    told = visitor.post("/outbox/bulk/confirm", [(name, "1" if name == "cap" else value) for name, value in preview])
    assert (told.status, "choose 1 to 1" in text_of(told)) == (400, True)
    assert len(world.safe.store.execute(ListJobs(dead=True))) == 2


def test_a_preview_of_letters_says_what_it_did_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters that an operator may not drop were counted as over the cap, and those that were not read as none."""
    stage_dead_letter(world.safe, "1f3a9c010f3a9c010f3a9c010f3a9c01", "mails")
    mine = Visitor(make_console(world.safe, actions=True, authorize=lambda *asked: _is_no_mail(asked[2])))
    shown = text_of(mine.post("/outbox/bulk", {**JOBS, "cap": "10"}))
    assert "1 job would be changed, 1 left alone. Letters that arrive" in shown
    visitor = Visitor(make_console(world.safe, actions=True))
    assert "There may be more" in text_of(visitor.post("/outbox/bulk", {**JOBS, "cap": "1"}))
    monkeypatch.setattr("retrysafe.console.actions.jobs.EXAMINED_ROWS", 1)
    none = text_of(visitor.post("/outbox/bulk", {**JOBS, "topic": "mails", "cap": "10"}))
    assert "No job would be changed. There may be others" in none


def _is_no_mail(record: Any) -> bool:
    return record is None or not hasattr(record, "job") or record.job.topic != "mails"


JOBS = {"verb": "drop", "topic": "", "because": "not wanted"}


# What the page of a key says was done ---------------------------------------------------------------


def test_only_an_audit_row_of_this_key_is_shown_as_what_was_done(world: World, visitor: Visitor) -> None:
    """The address names the row, so a link can name any."""
    with RetrySafe(world.safe.url, namespace="others") as others:
        theirs = others.store.execute(claim("their-key", namespace="others", now=1)).record
        decided = fields(theirs, outcome="did-not-happen")
        Visitor(make_console(others, actions=True)).post(f"/keys/{theirs.id.hex()}/resolve", decided)
        theirs_too = Reason("eve", "theirs").entry("outbox drop", ())
        with open_on_safe(others).act(theirs_too):
            pass
    path = f"/keys/{world.lapsed.id.hex()}"
    page = visitor.follow(visitor.post(f"{path}/release", fields(world.lapsed)))
    assert "keys release: done." in text_of(page)
    found = world.safe.store.execute(List(kind=AUDIT_KIND, limit=10)).records
    assert {each.namespace for each in found} == {"default", "others"}
    for row in (*found, world.completed):
        for other in (f"/keys/{world.uncertain.id.hex()}", "/outbox"):
            assert ": done." not in text_of(visitor.get(f"{other}?did={row.id.hex()}"))


def test_a_long_body_is_cut_where_it_is_shown(world: World, visitor: Visitor) -> None:
    owner = world.safe.store.execute(claim("long", scope="acme", now=None))
    world.safe.store.execute(complete(owner, b"x" * (SHOWN_BODY_BYTES + 5_000), now=None))
    page = visitor.post(f"/keys/{owner.record.id.hex()}/reveal", fields(owner.record))
    assert page.status == 200
    assert "5,000 more bytes" in text_of(page)
    assert len(page.body) < SHOWN_BODY_BYTES + 20_000


# The login of this machine --------------------------------------------------------------------------


def open_login(safe: RetrySafe) -> tuple[OneTimeLogin, LoopbackApp]:
    login = OneTimeLogin(Operator("ann"))
    return login, LoopbackApp(Console(safe, authenticate=login.authenticate), login)


def test_a_login_has_its_headers_and_sessions_are_few(safe: RetrySafe) -> None:
    login, app = open_login(safe)
    host = {"host": "127.0.0.1:1"}
    answers = [
        app.handle(ConsoleRequest("GET", "/login", f"token={login.new_token()}", host)) for _ in range(MAX_SESSIONS + 1)
    ]
    assert [each.status for each in answers] == [303] * MAX_SESSIONS + [403]
    assert {each.header("x-frame-options") for each in answers} == {"DENY"}
    assert {each.header("cache-control") for each in answers} == {"no-store"}


def test_a_session_that_was_given_before_the_login_opens_nothing(safe: RetrySafe) -> None:
    """Session fixation: the name of a session is drawn at the login, whatever cookie came with it."""
    login, app = open_login(safe)
    given = {"host": "127.0.0.1:1", "cookie": "retrysafe_console_1=chosen-by-somebody-else"}
    answer = app.handle(ConsoleRequest("GET", "/login", f"token={login.new_token()}", given))
    assert answer.status == 303
    assert "chosen-by-somebody-else" not in answer.header("set-cookie")
    assert app.handle(ConsoleRequest("GET", "/", "", given)).status == 401


def test_the_link_and_keys_in_addresses_are_not_printed(safe: RetrySafe, capfd: pytest.CaptureFixture[str]) -> None:
    login, app = open_login(safe)
    token = login.new_token()
    with open_server(app, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            assert httpx.get(f"{address}/login?token={token}").status_code == 303
            assert httpx.get(f"{address}/keys?key=order-7&scope=acme").status_code == 401
        finally:
            server.shutdown()
            thread.join()
    said = capfd.readouterr()
    assert (token in said.out + said.err, "order-7" in said.out + said.err) == (False, False)


# Bodies ---------------------------------------------------------------------------------------------


async def test_a_form_that_comes_byte_by_byte_is_put_together() -> None:
    """Each piece was appended to bytes, which copies all before it: half a megabyte of single bytes kept the event loop
    busy for long, before anybody was asked for a session."""
    seen: list[ConsoleRequest] = []

    def handle(request: ConsoleRequest) -> Any:
        seen.append(request)
        return say(200, "done")

    whole = b"because=the+bank+says+so&" * 20_000
    pieces = iter(whole[place : place + 1] for place in range(len(whole)))
    sent = [0]

    async def receive() -> dict[str, Any]:
        sent[0] += 1
        return {"type": "http.request", "body": next(pieces), "more_body": sent[0] < len(whole)}

    async def send(message: Any) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": "/bulk", "headers": [], "query_string": b""}
    await AsgiShell(handle)(scope, receive, send)
    assert seen[0].body == whole


async def test_a_caller_is_kept_as_some_digits_only(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    path = tmp_path / "requests.jsonl"
    transport = httpx.ASGITransport(RequestLog(app, path))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
        await client.post("/pay", headers={"Authorization": "Bearer very-secret"})
    assert "very-secret" not in path.read_text()
