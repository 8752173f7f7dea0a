"""The built documentation site in a real browser: it asks no other host, its search finds pages, and its pages can be
read in light and dark, on a desktop and on a phone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote_plus

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import ACTION_SECONDS, OpenPage, find_accessibility_faults
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


ANSWERS = {
    "outcome unknown": PROBLEM,
    "500 outcome-unknown": PROBLEM,
    "urn:retrysafe:problem:outcome-unknown": PROBLEM,
    "409 in progress": "/problems/in-progress/",
    "wait instead of 409": "/explanation/conflict-or-wait/#wait-instead-of-409",
    "erase tenant": "/howto/operate/#erase-a-tenant",
    "Redis failover": "/howto/redis/#know-what-a-redis-failover-loses",
    "Django transactions": "/howto/django/#use-transactions",
    "key stuck": "/howto/operate/#a-key-is-stuck",
    "rotate keys": "/howto/encryption/#rotate-an-encryption-key",
    "rotate encryption key": "/howto/encryption/#rotate-an-encryption-key",
    "required mode": "/reference/http/#modes",
    "roll out existing API": GUIDE,
    "which store": "/howto/choosing/#choose-which-store-to-use",
    "test endpoint": "/howto/testing/",
    "pod killed": "/explanation/after-a-crash/#when-a-pod-is-killed-who-cleans-up-and-when",
    "kubernetes": "/explanation/after-a-crash/#when-a-pod-is-killed-who-cleans-up-and-when",
    "OOM": "/explanation/after-a-crash/#when-a-pod-is-killed-who-cleans-up-and-when",
    "rejected form": "/explanation/which-failures-to-store/#what-about-a-rejected-form",
    "set up Redis server": "/howto/redis/#set-up-the-redis-server",
    "key has leaked": "/howto/encryption/#if-a-key-has-leaked",
    "alembic": "/howto/upgrading/#use-your-own-migration-tool",
    "file upload": "/reference/http/#uploads-streams-and-websockets",
    "postgres grant": "/howto/postgres/#grant-rights-to-the-applications-user",
    "send key from browser": "/howto/rollout/#send-keys-from-a-browser",
    "how long are keys kept": "/reference/policy/#how-long-keys-are-kept",
    "ttl": "/reference/policy/#how-long-keys-are-kept",
    "restore backup": "/howto/choosing/#restore-the-store-from-an-old-backup",
    "multi-region": "/howto/choosing/#run-in-several-regions",
    "production": "/howto/production/",
    "duplicate webhook": "/howto/webhooks/",
    "AWS Lambda": "/howto/choosing/#run-on-aws-lambda",
    "uncertain": "/howto/resolving/#find-uncertain-keys",
    "retry-after": "/reference/http/#retry-after",
    "key expires": "/reference/policy/#how-long-keys-are-kept",
    "key expires?": "/reference/policy/#how-long-keys-are-kept",
    "422": "/problems/mismatch/",
    "retry 422": "/problems/mismatch/",
    "upgrade zero downtime": "/howto/upgrading/",
    "which store should I choose": "/#common-questions",
    "use with Django transactions": "/howto/django/#use-transactions",
    "crash in the middle of a charge": "/tutorial/crash-it/#1-crash-the-server-in-the-middle-of-a-charge",
}
"""What people ask, and what the search must show first."""


def test_the_search_finds_first_what_people_ask_for(open_page: OpenPage, site: str) -> None:
    page = open_page(site + HOME)
    page.get_by_role("button", name="Search").click()
    for question, answer in ANSWERS.items():
        page.keyboard.press("Control+A")
        page.keyboard.type(question)
        path, mark, anchor = answer.partition("#")
        first = page.get_by_role("option").first
        link = f"{site}{path}?h={quote_plus(question)}{mark}{anchor}"
        expect(first).to_have_attribute("href", link, timeout=ACTION_SECONDS * 1000)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{site}{path}**")
