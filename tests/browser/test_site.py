"""The built documentation site in a real browser: it asks no other host, its search finds pages, and its pages can be
read in light and dark, on a desktop and on a phone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, find_accessibility_faults
from tests.built_site import build_site

HOME, GUIDE, REFERENCE, PROBLEM = "/", "/howto/rollout/", "/reference/policy/", "/problems/outcome-unknown/"
THEMES = {"light": "default", "dark": "slate"}


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the built site, on the loopback address."""
    folder = build_site(tmp_path_factory.mktemp("project"))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.parametrize(
    ("size", "scheme", "paths"), [("desktop", "light", (GUIDE, PROBLEM)), ("phone", "dark", (HOME, REFERENCE))]
)
def test_pages_can_be_read_and_ask_no_other_host(
    open_page: OpenPage, site: str, size: str, scheme: str, paths: tuple[str, ...]
) -> None:
    page = open_page("about:blank", size, scheme)  # `open_page` notes every request to another host
    for path in paths:
        page.goto(site + path)
        expect(page.locator("body")).to_have_attribute("data-md-color-scheme", THEMES[scheme])
        assert fits(page), path
        assert find_accessibility_faults(page) == [], path


def test_the_search_finds_the_page_of_a_problem(open_page: OpenPage, site: str) -> None:
    page = open_page(site + HOME)
    page.get_by_role("button", name="Search").click()
    page.keyboard.type("outcome unknown")
    found = page.get_by_role("option", name="The outcome is unknown").first
    expect(found).to_be_visible(timeout=30_000)
    found.click()
    page.wait_for_url(f"{site}{PROBLEM}*")
