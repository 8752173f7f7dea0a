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

from retrysafe import RetrySafe
from retrysafe.console.access import Operator
from retrysafe.console.console import Console
from retrysafe.console.loopback import LoopbackApp, OneTimeLogin, open_server
from retrysafe.console.request_log import LogFile, SeenRequest
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import complete
from retrysafe.web.key_usage import KeyUsageStats
from tests.browser.conftest import find_accessibility_faults
from tests.console import test_hostile
from tests.console.conftest import World, fill
from tests.console.hostile import make_hostile

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


class Served(NamedTuple):
    """A console that is served, and a browser that is logged in."""

    address: str
    link: Callable[[], str]


@contextmanager
def serve(safe: RetrySafe, **settings: Any) -> Iterator[Served]:
    login = OneTimeLogin(Operator("ann"))
    console = Console(safe, **{"authenticate": login.authenticate, "actions": True, **settings})
    with open_server(LoopbackApp(console, login), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield Served(address, lambda: f"{address}/login?token={login.new_token()}")
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
    log = LogFile(tmp_path / "requests.jsonl")
    for amount in ("100", "1000"):
        log.append(SeenRequest(1.0, "POST", "/pay", "order-7", 200, False, "", {"amount": amount}))
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
    safe = stored.safe
    with serve(safe) as served, visit(browser, served, script=script) as page:
        for path in PATHS:
            answer = page.goto(path)
            assert answer is not None
            assert answer.status == 200, path
        resolve(page, stored.uncertain, "It did not happen")
        assert reread(safe, stored.uncertain).state is State.RELEASED
        press(page, stored.lapsed, "Release attempt 1", "release-because")
        assert reread(safe, stored.lapsed).state is State.RELEASED
        reveal(page, stored.completed, "ch_secret")
        press(page, stored.completed, "Forget", "forget-because")
        page.goto(f"/keys/{stored.completed.id.hex()}")
        expect(page.get_by_text("told that the answer was not kept")).to_be_visible()
        press(page, stored.run, "Resume now", "resume-because")
        assert reread(safe, stored.run).state is State.COMPLETED
        if safe.store.capabilities.outbox:
            retry_letter(page)
        page.goto("/audit")
        shown = page.inner_text("table")
        for action in ("keys resolve", "keys release", "keys show", "keys forget", "operations resume"):
            assert action in shown


def resolve(page: Page, record: Record, what: str) -> None:
    page.goto(f"/keys/{record.id.hex()}")
    page.get_by_label(what).check()
    page.fill("#resolve-because", "the bank says so")
    page.get_by_role("button", name="Resolve attempt 1").click()
    expect(page.get_by_role("status")).to_contain_text("keys resolve: done.")


def press(page: Page, record: Record, button: str, reason: str) -> None:
    page.goto(f"/keys/{record.id.hex()}")
    page.fill(f"#{reason}", "the bank says so")
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.get_by_role("status")).to_contain_text(": done.")


def reveal(page: Page, record: Record, secret: str) -> None:
    page.goto(f"/keys/{record.id.hex()}")
    assert secret not in page.content()
    page.fill("#reveal-because", "a customer asks")
    page.get_by_role("button", name="Reveal").click()
    expect(page.get_by_text(secret)).to_be_visible()


def retry_letter(page: Page) -> None:
    page.goto("/outbox?dead=1")
    page.locator("details summary").first.click()
    page.get_by_label("Because (stored in the audit row)").first.fill("the mail server is back")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.get_by_text("No dead letter")).to_be_visible()


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_a_bulk_action_skips_what_changed(browser: Browser, world: World, script: bool) -> None:
    from tests.console.test_actions import crowd

    records = crowd(world, 3)
    with serve(world.safe) as served, visit(browser, served, script=script) as page:
        page.goto("/keys?state=uncertain&target=POST+/bulk")
        page.get_by_label("They did not happen: the next retry runs").check()
        page.fill("#bulk-because", "none was charged")
        page.get_by_role("button", name="Show what would change").click()
        expect(page.get_by_text("3 keys would be changed")).to_be_visible()
        world.safe.store.execute(complete(records[0], b"done", now=None))
        page.get_by_role("button", name="Change these keys").click()
        expect(page.get_by_role("status")).to_contain_text("2 changed, 1 skipped.")


# Looks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "size"), [("light", DESKTOP), ("dark", PHONE)], ids=["desktop-light", "phone-dark"])
def test_axe_finds_nothing_serious(browser: Browser, world: World, full: Served, scheme: str, size: Any) -> None:
    records = [f"/keys/{each.id.hex()}" for each in (world.uncertain, world.run)]
    found = []
    with visit(browser, full, scheme=scheme, size=size) as page:
        for path in (*PATHS, *records, "/nowhere"):
            page.goto(path)
            found += [f"{path}: {each}" for each in find_accessibility_faults(page)]
    assert found == []


def test_a_phone_shows_everything_without_scrolling_sideways(browser: Browser, world: World, full: Served) -> None:
    with visit(browser, full, size=PHONE) as page:
        for path in (*PATHS, f"/keys/{world.uncertain.id.hex()}", f"/keys/{world.run.id.hex()}"):
            page.goto(path)
            wide = page.evaluate("() => document.documentElement.scrollWidth")
            assert wide <= PHONE["width"], (path, wide)


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


# Hostile ------------------------------------------------------------------------------------------


def test_hostile_strings_stay_text(browser: Browser) -> None:
    """All 1,000 on the pages of the list, and a sample of pages of keys."""
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
        page.goto(f"/keys/{ids[1].hex()}")
        page.fill("#reveal-because", '"><script>window.hacked=1</script>')
        page.get_by_role("button", name="Reveal").click()
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
