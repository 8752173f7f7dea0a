"""A real browser for the pages we serve: `open_page(...)` gives a page at desktop or phone width, in light or dark.

Every page is watched. A test fails if a script on its page raised, if the page broke its Content-Security-Policy, or if
it asked any host but 127.0.0.1. `find_accessibility_faults` runs axe-core in the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.servers.base import ServerUnavailable
from tests.servers.chromium import find_chromium
from tests.servers.fetched import package
from tests.servers.lazy import missing

SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
Size = Literal["desktop", "phone"]
Scheme = Literal["light", "dark"]
OpenPage = Callable[..., Page]

ACTION_SECONDS = 30.0
"""For one click or one expectation, on a machine that does ten other things."""

AXE = (
    "axe-core",
    "4.14.0",
    "sha512-9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==",
)
"""MPL-2.0. Fetched into `.tools/` for tests and never shipped."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker process runs all tests of this folder, one after the other: a browser takes both cores."""
    for item in items:
        if item.path.parent.name == "browser":
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For a module, not for the whole run: while Playwright's sync API is up, its event loop counts as running in this
    thread, and the async tests of other modules could not run."""
    try:
        chromium = find_chromium()
    except ServerUnavailable as error:
        missing(f"no browser: {error}")
    expect.set_options(timeout=ACTION_SECONDS * 1000)  # its own is five seconds
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=chromium.path,
            env=dict(chromium.env),
            args=["--no-sandbox"],  # root in a container has no user namespace; the pages are our own
        )
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """`open_page(url, size="phone", scheme="dark", motion=False)`: a page in a context of its own."""
    faults: list[str] = []
    contexts = []

    def open_one(
        url: str, size: Size = "desktop", scheme: Scheme = "light", *, motion: bool = True, **options: Any
    ) -> Page:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="no-preference" if motion else "reduce",
            has_touch=size == "phone",
            **options,
        )
        contexts.append(context)
        context.set_default_timeout(ACTION_SECONDS * 1000)
        page = context.new_page()
        watch(page, faults)
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert faults == []


def watch(page: Page, faults: list[str]) -> None:
    def note_message(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            faults.append(f"CSP: {message.text}")

    def note_request(request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.hostname != "127.0.0.1":
            faults.append(f"asked another host: {request.url}")

    page.on("console", note_message)
    page.on("request", note_request)
    page.on("pageerror", lambda error: faults.append(f"script: {error}"))


def find_accessibility_faults(page: Page) -> list[str]:
    """The serious and critical findings of axe-core on the page as it is now, each with its element."""
    load_axe(page)
    return run_axe(page)


def load_axe(page: Page) -> None:
    page.evaluate((package(*AXE) / "axe.min.js").read_text())


def run_axe(page: Page) -> list[str]:
    """For a page that is looked at several times: at another width, in another scheme."""
    found: list[dict[str, Any]] = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {[node['target'] for node in one['nodes']]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
