"""The console in a real browser: every page and action with and without script, on three stores; nothing that is stored
becomes markup, runs or asks; no serious finding of axe-core; polling that pauses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from retrysafe import Answer, Key, RetrySafe
from retrysafe.console.access import Operator
from retrysafe.console.console import Console
from retrysafe.console.loopback import LoopbackApp, OneTimeLogin, open_server
from retrysafe.console.request_log import LogFile
from retrysafe.core.jobs import ListJobs, ReviveJob
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import NotFinished, OutcomeUnknown
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import claim, complete
from retrysafe.web.key_usage import KeyUsageStats
from tests.browser.conftest import load_axe, run_axe
from tests.console import test_hostile
from tests.console.conftest import World, fill, stage_dead_letter
from tests.console.hostile import make_hostile
from tests.console.requests_seen import make_requests

DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
WAIT_MILLISECONDS = 30_000
PATHS = (
    "/",
    "/keys",
    "/keys?state=uncertain",
    "/operations",
    "/outbox?dead=1",
    "/rollout",
    "/doctor",
    "/audit",
    "/requests",
)


LONG_ERROR = (
    "HTTPStatusError: Client error '400 Bad Request' for url "
    f"'https://ledger.example.com/v2/entries?tenant=acme&batch={'0' * 40}'"
)


class Served(NamedTuple):
    """A console that is served, and a browser that is logged in."""

    address: str
    link: Callable[[], str]
    console: Console


@contextmanager
def serve(safe: RetrySafe, **settings: Any) -> Iterator[Served]:
    login = OneTimeLogin(Operator("ann"))
    console = Console(safe, **{"authenticate": login.authenticate, "actions": True, **settings})
    with open_server(LoopbackApp(console, login), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield Served(address, lambda: f"{address}/login?token={login.new_token()}", console)
        finally:
            server.shutdown()
            thread.join()


class Watch:
    """What a page must not do: complain, break its policy, open a dialog, ask another address."""

    def __init__(self, page: Page, address: str) -> None:
        self.wrong: list[str] = []
        self._address = address
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self._check(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and "status of 4" not in text:
            self.wrong.append(f"{kind}: {text}")

    def _check(self, url: str) -> None:
        if not url.startswith((self._address, "data:,")) or "hacked" in url.partition("?")[0]:
            self.wrong.append(f"request: {url}")


@contextmanager
def visit(
    browser: Browser, served: Served, *, script: bool = True, size: Any = None, scheme: Any = "light"
) -> Iterator[Page]:
    context: BrowserContext = browser.new_context(
        java_script_enabled=script, viewport=size or DESKTOP, color_scheme=scheme, base_url=served.address
    )
    context.set_default_timeout(WAIT_MILLISECONDS)
    page = context.new_page()
    watch = Watch(page, served.address)
    try:
        page.goto(served.link())
        yield page
        assert watch.wrong == []
    finally:
        context.close()


@pytest.fixture
def world(sqlite_url: str) -> Iterator[World]:
    with RetrySafe(sqlite_url) as safe:
        safe.migrate()
        yield fill(safe)


@pytest.fixture
def full(world: World, tmp_path: Path) -> Iterator[Served]:
    """A console with something on every page."""
    stats = KeyUsageStats()
    for sent in ("keyed", "missing"):
        stats.count("POST /payments", "acme", sent)  # type: ignore[arg-type]
    stage_dead_letter(world.safe, uuid4().hex, "ledger.sync", LONG_ERROR)
    log = LogFile(tmp_path / "requests.jsonl")
    for seen in make_requests(1.0):
        log.append(seen)
    with serve(world.safe, census=[stats], request_log=log.path) as served:
        yield served


def reread(safe: RetrySafe, record: Record) -> Record:
    found = safe.store.execute(Lookup(record.id)).record
    assert found is not None
    return found


# Every page and action ----------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def stored(request: pytest.FixtureRequest) -> Iterator[World]:
    url = request.getfixturevalue(f"{request.param}_url")
    with RetrySafe(url, namespace=f"console-{uuid4().hex[:8]}") as safe:
        safe.migrate()
        yield fill(safe)


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_every_page_and_action(browser: Browser, stored: World, script: bool) -> None:
    """One story: a browser takes longer to start than to click."""
    safe = stored.safe
    undone, cancelled, refunds = stop_runs(safe)
    with serve(safe) as served, visit(browser, served, script=script) as page:
        for path in PATHS:
            answer = page.goto(path)
            assert answer is not None
            assert answer.status == 200, path
        resolve(page, stored.uncertain, "It did not happen")
        assert reread(safe, stored.uncertain).state is State.RELEASED
        resolve_with_answer(page, safe)
        press(page, stored.lapsed, "Release attempt 1", "release-because")
        assert reread(safe, stored.lapsed).state is State.RELEASED
        reveal(page, stored.completed, "ch_secret")
        press(page, stored.completed, "Forget", "forget-because")
        page.goto(f"/keys/{stored.completed.id.hex()}")
        expect(page.get_by_text("told that the answer was not kept")).to_be_visible()
        press(page, stored.run, "Resume now", "resume-because")
        assert reread(safe, stored.run).state is State.COMPLETED
        end_run(page, undone, "undo", "Leave what was sent and has no undo", "flight")
        assert (reread(safe, undone).state, refunds) == (State.COMPLETED, ["room o-undone"])
        end_run(page, cancelled, "cancel", "Leave what its steps did", "undo it, or")
        assert (reread(safe, cancelled).state, len(refunds)) == (State.COMPLETED, 1)
        act_on_many_keys(page, safe)
        wanted = ["keys resolve", "keys release", "keys show", "keys forget"]
        wanted += ["operations resume", "operations undo", "operations cancel"]
        if safe.store.capabilities.outbox:
            act_on_letters(page, safe)
            wanted += ["outbox retry", "outbox drop"]
        page.goto("/audit")
        shown = page.inner_text("table")
        assert [action for action in wanted if action not in shown] == []


def stop_runs(safe: RetrySafe) -> tuple[Record, Record, list[str]]:
    """Two runs that stopped at their second step, and the undos that were called."""
    book = safe.operation("book")
    undos: list[str] = []

    def leave(result: str | None, *, key: str) -> None:
        undos.append(str(result))

    @book.foreign(undo=leave)
    def room(order: str, *, key: str) -> str:
        return f"room {order}"

    @book.foreign(tries=1)
    def flight(order: str, *, key: str) -> str:
        raise ConnectionError("no flight today")

    @book.body
    def body(order: str) -> Answer:
        room(order)
        flight(order)
        return Answer(201, {"order": order})

    found = []
    for name in ("undone", "cancelled"):
        with pytest.raises((NotFinished, OutcomeUnknown)):
            book(f"o-{name}", key=name)
        record = safe.store.execute(Lookup(Key(name, "book", "operation").id(safe.namespace))).record
        assert record is not None
        found.append(record)
    return found[0], found[1], undos


def end_run(page: Page, run: Record, verb: str, box: str, refusal: str) -> None:
    """Without a word about what its steps did it is refused."""
    for leave in (False, True):
        page.goto(f"/keys/{run.id.hex()}")
        page.fill(f"#{verb}-because", "the customer left")
        if leave:
            page.get_by_label(box).check()
        page.get_by_role("button", name=verb.capitalize(), exact=True).click()
        if not leave:
            expect(page.get_by_role("alert")).to_contain_text(refusal)
    expect(page.get_by_role("status")).to_contain_text(f"operations {verb}: done.")


def act_on_many_keys(page: Page, safe: RetrySafe) -> None:
    """What changes between the preview and the confirmation is skipped."""
    names = {"namespace": safe.namespace, "scope": "acme", "now": 9}
    guards = [safe.store.execute(claim(f"bulk-{n}", target="POST /bulk", **names)) for n in range(3)]
    held = [safe.store.execute(claim(f"held-{n}", target="POST /held", on_lapse="rerun", **names)) for n in range(2)]
    preview(page, "/keys?state=uncertain&target=POST+/bulk", "They did not happen: the next retry runs")
    expect(page.get_by_text("3 keys would be changed")).to_be_visible()
    safe.store.execute(complete(guards[0], b"done", now=None))
    page.get_by_role("button", name="Change these keys").click()
    expect(page.get_by_role("status")).to_contain_text("2 changed, 1 skipped.")
    preview(page, "/keys?state=lapsed&target=POST+/held")
    page.get_by_label("change held-1").uncheck()
    page.get_by_role("button", name="Change these keys").click()
    expect(page.get_by_role("status")).to_contain_text("1 changed, 0 skipped.")
    states = [reread(safe, each.record).state for each in (*guards, *held)]
    assert states == [State.COMPLETED, State.RELEASED, State.RELEASED, State.RELEASED, State.CLAIMED]


def preview(page: Page, path: str, choice: str = "") -> None:
    page.goto(path)
    if choice:
        page.get_by_label(choice).check()
    page.fill("#bulk-because", "none was charged")
    page.get_by_role("button", name="Show what would change").click()


def act_on_letters(page: Page, safe: RetrySafe) -> None:
    """One is retried, one is dropped; of two more that are dropped together, one is retried by somebody else."""
    ids = [uuid4().hex for _ in range(3)]
    for each in ids:
        stage_dead_letter(safe, each, "mails")
    act_on_letter(page, "receipts", "Retry")
    act_on_letter(page, "mails", "Drop")
    page.goto("/outbox?dead=1&topic=mails")
    page.get_by_label("Drop: delete them").check()
    page.fill("#jobs-because", "nobody reads them")
    page.get_by_role("button", name="Show what would change").click()
    expect(page.get_by_text("2 jobs would be changed")).to_be_visible()
    safe.store.execute(ReviveJob(ids[1], namespace=safe.namespace))
    page.get_by_role("button", name="Drop these jobs").click()
    expect(page.get_by_role("status")).to_contain_text("outbox drop: 1 changed, 1 skipped.")
    left = safe.store.execute(ListJobs(namespace=safe.namespace))
    assert {(each.job.topic, each.job.id in ids[1:2], each.dead) for each in left} == {
        ("receipts", False, False),
        ("mails", True, False),
    }


def act_on_letter(page: Page, topic: str, button: str) -> None:
    page.goto(f"/outbox?dead=1&topic={topic}")
    page.locator("details summary").first.click()
    form = page.locator("details[open] form").filter(has=page.get_by_role("button", name=button, exact=True))
    form.get_by_label("Because (stored in the audit row)").fill("the mail server is back")
    form.get_by_role("button", name=button, exact=True).click()
    expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()


def resolve(page: Page, record: Record, what: str, place: str = "") -> None:
    page.goto(f"{place}/keys/{record.id.hex()}")
    page.get_by_label(what).check()
    page.fill("#resolve-because", "the bank says so")
    page.get_by_role("button", name="Resolve attempt 1").click()
    expect(page.get_by_role("status")).to_contain_text("keys resolve: done.")


def resolve_with_answer(page: Page, safe: RetrySafe) -> None:
    """It happened, and retries get what the bank said."""
    record = safe.store.execute(claim("answered", scope="acme", namespace=safe.namespace, now=9)).record
    page.goto(f"/keys/{record.id.hex()}")
    page.get_by_label("It happened: a retry does not run").check()
    page.locator("summary", has_text="It happened, and I have the answer").click()
    page.get_by_label("Retries get this answer").check()
    page.fill("#resolve-status", "201")
    page.fill("#resolve-answer", '{"charge":\n"ch_9"}')
    page.fill("#resolve-because", "the bank says so")
    page.get_by_role("button", name="Resolve attempt 1").click()
    expect(page.get_by_role("status")).to_contain_text("keys resolve: done.")
    answer = reread(safe, record).answer
    assert answer is not None
    assert (answer.status, answer.body) == (201, b'{"charge":\n"ch_9"}')


def press(page: Page, record: Record, button: str, reason: str) -> None:
    page.goto(f"/keys/{record.id.hex()}")
    page.fill(f"#{reason}", "the bank says so")
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.get_by_role("status")).to_contain_text(": done.")


def reveal(page: Page, record: Record, secret: str, place: str = "") -> None:
    page.goto(f"{place}/keys/{record.id.hex()}")
    assert secret not in page.content()
    page.fill("#reveal-because", "a customer asks")
    page.get_by_role("button", name="Reveal").click()
    expect(page.get_by_text(secret)).to_be_visible()


# Looks --------------------------------------------------------------------------------------------


LOOKS = [(size, scheme) for size in (DESKTOP, PHONE) for scheme in ("light", "dark")]


def test_every_page_is_accessible_in_every_look(browser: Browser, world: World, full: Served) -> None:
    """Each page is loaded once and looked at four times; at the width of a phone nothing is beside the screen."""
    records = [f"/keys/{each.id.hex()}" for each in (world.uncertain, world.run, world.completed, world.lapsed)]
    wrong: list[str] = []
    with visit(browser, full) as page:
        for path in (*PATHS, *records, "/rollout?clients=1", "/operations?state=completed", "/nowhere"):
            page.goto(path)
            wrong += look_at(page, path)
        preview(page, "/keys?state=uncertain", "They happened: a retry does not run")
        wrong += look_at(page, "bulk preview")
        page.get_by_role("button", name="Change these keys").click()
        wrong += look_at(page, "bulk done")
        page.goto("/outbox?dead=1")
        page.get_by_label("Retry: deliver them again").check()
        page.fill("#jobs-because", "it is back")
        page.get_by_role("button", name="Show what would change").click()
        wrong += look_at(page, "jobs preview")
        page.get_by_role("button", name="Retry these jobs").click()
        wrong += look_at(page, "jobs done")
        reveal(page, world.completed, "ch_secret")
        wrong += look_at(page, "revealed")
        press(page, world.lapsed, "Release attempt 1", "release-because")
        wrong += look_at(page, "done")
        page.goto("/audit")
        wrong += look_at(page, "audit with rows")
    assert wrong == []


def look_at(page: Page, name: str) -> list[str]:
    load_axe(page)
    found = []
    for size, scheme in LOOKS:
        page.set_viewport_size(size)  # type: ignore[arg-type]
        # Without motion: else a colour is on its way to the other scheme when it is looked at.
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        found += [f"{name}, {size['width']} {scheme}: {each}" for each in run_axe(page)]
        wide = page.evaluate("() => document.documentElement.scrollWidth")
        found += [f"{name}: {wide} pixels wide"] if wide > size["width"] else []
        found += [f"{name}, {size['width']}: {each}" for each in page.evaluate(FIND_UNREADABLE)]
    return found


FIND_UNREADABLE = """() => {
    const words = [...document.querySelectorAll(".chip")].filter(each => !/\\s/.test(each.textContent.trim()));
    const broken = words.filter(each => each.getBoundingClientRect().height > 30);
    const single = [...document.querySelectorAll("td, td a")].filter(each =>
        !each.childElementCount && /^[\\w.:-]{1,16}$/.test(each.textContent.trim()));
    const cut = single.filter(each => {
        const range = document.createRange();
        range.selectNodeContents(each);
        return new Set([...range.getClientRects()].map(line => Math.round(line.top))).size > 1;
    });
    const small = [...document.querySelectorAll("svg text")].filter(each => {
        const height = each.getBoundingClientRect().height;
        return height > 0 && height < 12;
    });
    return [...broken.map(each => `a word in two lines: ${each.textContent}`),
            ...cut.map(each => `a word in two lines: ${each.textContent}`),
            ...small.map(each => `too small to read: ${each.textContent}`)];
}"""
"""A state, a name or a topic that is broken in two, and letters of a diagram that are less than about ten pixels."""


def test_a_key_is_resolved_by_keyboard_alone(browser: Browser, world: World, full: Served) -> None:
    with visit(browser, full) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.textContent") == "Skip to the content"
        page.goto(f"/keys/{world.uncertain.id.hex()}")
        tab_to(page, "() => document.activeElement.value === 'did-not-happen'")
        page.keyboard.press("Space")
        tab_to(page, "() => document.activeElement.id === 'resolve-because'")
        page.keyboard.type("the bank says so")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_contain_text("keys resolve: done.")


def tab_to(page: Page, condition: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(condition):
            return
    raise AssertionError(f"60 tabs did not lead to {condition}")


# Live ---------------------------------------------------------------------------------------------


def test_a_page_stays_current_and_pauses_when_it_is_hidden(browser: Browser, world: World, full: Served) -> None:
    asked: list[str] = []
    with visit(browser, full) as page:
        page.on("request", lambda request: asked.append(request.headers.get("hx-request", "")))
        page.clock.install()
        page.goto(f"/keys/{world.working.id.hex()}")
        world.safe.store.execute(complete(world.working, b"{}", now=None))
        page.clock.fast_forward(5_000)
        expect(page.get_by_text("This key changed since the page was drawn.")).to_be_visible()
        expect(page.locator(".chip.completed")).to_be_visible()
        page.evaluate("() => Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})")
        before = asked.count("true")
        page.clock.fast_forward(60_000)
        page.evaluate("() => 0")
        assert asked.count("true") == before, "a hidden page does not ask"
        page.evaluate("() => Object.defineProperty(document, 'hidden', {get: () => false, configurable: true})")
        with page.expect_request(lambda request: request.headers.get("hx-request") == "true"):
            page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
        page.get_by_role("button", name="Pause").click()
        before = asked.count("true")
        page.clock.fast_forward(60_000)
        page.evaluate("() => 0")
        assert asked.count("true") == before, "a paused page does not ask"


def test_a_form_that_is_filled_in_is_left_alone(browser: Browser, full: Served) -> None:
    with visit(browser, full) as page:
        page.clock.install()
        page.goto("/outbox?dead=1")
        page.locator("details summary").first.click()
        field = page.get_by_label("Because (stored in the audit row)").first
        field.fill("half a sen")
        page.clock.fast_forward(30_000)
        assert field.input_value() == "half a sen"


@contextmanager
def visit_unwatched(browser: Browser, served: Served) -> Iterator[Page]:
    """For what a browser complains about: a server that does not answer."""
    context = browser.new_context(base_url=served.address)
    context.set_default_timeout(WAIT_MILLISECONDS)
    page = context.new_page()
    page.goto(served.link())
    yield page
    context.close()


def test_a_page_that_is_not_answered_says_so(browser: Browser, full: Served) -> None:
    """It went on showing what had been true once, in the colours of a page that is current."""
    with visit_unwatched(browser, full) as page:
        page.clock.install()
        page.goto("/")
        stale = page.get_by_role("alert")
        expect(stale).to_be_hidden()
        page.route("**/*", lambda route: route.abort())
        page.clock.fast_forward(5_000)
        page.clock.fast_forward(5_000)
        expect(stale).to_contain_text("has not answered since")
        page.unroute_all()
        page.clock.fast_forward(5_000)
        expect(stale).to_be_hidden()


def test_a_session_that_ends_is_said_on_the_page(browser: Browser, world: World) -> None:
    inside = [True]
    with serve(world.safe) as served, visit_unwatched(browser, served) as page:
        login = served.console.authenticate
        served.console.authenticate = lambda request: login(request) if inside[0] else None
        page.clock.install()
        page.goto(f"/keys/{world.uncertain.id.hex()}")
        inside[0] = False
        page.clock.fast_forward(5_000)
        expect(page.locator("#live")).to_contain_text("log in first")
        page.fill("#resolve-because", "the bank says so")
        page.get_by_label("It did not happen").check()
        page.get_by_role("button", name="Resolve attempt 1").click()
        expect(page.locator("body")).to_contain_text("log in first; nothing was done")
    assert reread(world.safe, world.uncertain) == world.uncertain


def test_a_form_is_sent_once_however_often_its_button_is_pressed(browser: Browser, world: World) -> None:
    """The answer to the second click was the one to be seen: that somebody else had been quicker."""
    came, answered = threading.Event(), threading.Event()
    sent: list[str] = []
    filled_in = False

    def authorize(operator: Operator, action: str, record: Any) -> bool:
        if action == "keys release" and filled_in:
            came.set()
            assert answered.wait(WAIT_MILLISECONDS / 1000)
        return True

    with serve(world.safe, authorize=authorize) as served, visit(browser, served) as page:
        page.goto(f"/keys/{world.lapsed.id.hex()}")
        page.fill("#release-because", "its pod is gone")
        page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
        filled_in = True
        page.get_by_role("button", name="Release attempt 1").click(no_wait_after=True)
        assert came.wait(WAIT_MILLISECONDS / 1000), "the form is with the server"
        page.mouse.down()
        page.mouse.up()
        answered.set()
        expect(page.get_by_role("status")).to_contain_text("keys release: done.")
        assert len(sent) == 1
        page.go_back()
        page.fill("#release-because", "from the page as it was left")
        page.get_by_role("button", name="Release attempt 1").click()
        expect(page.get_by_role("alert").filter(has_text="nobody holds it")).to_be_visible()


# Hostile ------------------------------------------------------------------------------------------


def test_hostile_strings_stay_text(browser: Browser) -> None:
    """All 1,000 on the pages of the list, all as headers and in bodies that are revealed, and a sample of pages of
    keys."""
    safe = RetrySafe(MemoryStore())
    ids = test_hostile.fill(safe, make_hostile(1_000))
    with serve(safe) as served, visit(browser, served) as page:
        page.goto("/keys")
        for _ in range(100):
            assert page.evaluate("() => window.hacked") is None
            following = page.get_by_role("link", name="Next page")
            if not following.count():
                break
            following.click()
        for record_id in ids[:50:2]:
            page.goto(f"/keys/{record_id.hex()}")
            assert page.evaluate("() => window.hacked") is None
        for record_id in test_hostile.fill_answers(safe):
            page.goto(f"/keys/{record_id.hex()}")
            page.fill("#reveal-because", '"><script>window.hacked=1</script>')
            page.get_by_role("button", name="Reveal").click()
            expect(page.get_by_role("heading", name="Body of the answer")).to_be_visible()
            assert page.evaluate("() => window.hacked") is None
    safe.close()


def test_markup_that_was_injected_all_the_same_asks_nothing(browser: Browser, full: Served) -> None:
    """The second line of defence (S27): without the nonce of the page, attributes of htmx do nothing."""
    asked: list[str] = []
    context = browser.new_context(base_url=full.address)
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(full.link())
    page.evaluate("""() => {
        const made = document.createElement("div");
        made.setAttribute("hx-get", "/hacked");
        made.setAttribute("hx-trigger", "load");
        document.getElementById("main").append(made);
        htmx.process(made);
        htmx.trigger(made, "load");
    }""")
    assert page.evaluate("() => document.querySelector('[hx-get=\"/hacked\"]')") is None, "its attributes are gone"
    with page.expect_request(lambda request: request.headers.get("hx-request") == "true"):
        page.evaluate("() => htmx.trigger(document.getElementById('live'), 'poll')")
    assert not [url for url in asked if "hacked" in url]
    context.close()


def test_a_link_that_is_clicked_on_another_site_opens_the_console(browser: Browser, full: Served) -> None:
    """In a chat or a terminal in the browser: the cookie of the session is for our own pages only, so what the login
    led to was a refusal, and the link was used up."""
    page = browser.new_page()
    page.set_default_timeout(WAIT_MILLISECONDS)
    page.route(
        "http://chat.test/**",
        lambda route: route.fulfill(content_type="text/html", body=f"<a href={full.link()}>x</a>"),
    )
    page.goto("http://chat.test/")
    page.get_by_role("link").click()
    page.get_by_role("link", name="Open the console").click()
    expect(page.get_by_role("heading", name="Now")).to_be_visible()
    page.context.close()


def test_a_form_of_another_site_does_nothing(browser: Browser, world: World, full: Served) -> None:
    target = f"{full.address}/keys/{world.uncertain.id.hex()}/resolve"
    context = browser.new_context(base_url=full.address)
    page = context.new_page()
    page.goto(full.link())
    page.route(
        "http://evil.test/**",
        lambda route: route.fulfill(
            content_type="text/html",
            body=f'<form method=post action="{target}"><input name=because value=x><input name=attempt value=1>'
            "<input name=outcome value=happened><button>win a prize</button></form>",
        ),
    )
    page.goto("http://evil.test/")
    with page.expect_response(target) as answer:
        page.get_by_role("button").click()
    assert answer.value.status in (401, 403)
    assert reread(world.safe, world.uncertain) == world.uncertain
    context.close()
