"""The browser fixture itself: what it must notice, it notices."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import OpenPage, find_accessibility_faults, watch

POLICY = "default-src 'self'; img-src *; script-src 'unsafe-inline'"
FAULTY = f"""
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<p style="color: red">an inline style</p>
<img src="http://192.0.2.1/pixel.png" alt="">
<script>throw new Error("raised")</script>
"""


def test_what_a_page_must_not_do_is_noticed(browser: Browser) -> None:
    page = browser.new_page()
    faults: list[str] = []
    watch(page, faults)
    page.route("**/*", lambda route: route.abort())
    page.set_content(FAULTY)
    page.wait_for_timeout(0)
    page.close()
    assert sorted(fault.partition(":")[0] for fault in faults) == ["CSP", "asked another host", "script"]


@pytest.mark.parametrize("size", ["desktop", "phone"])
def test_a_page_without_a_title_and_with_grey_text_has_faults(open_page: OpenPage, size: str) -> None:
    page = open_page("data:text/html,<p style='color:%23999'>grey</p>", size)
    found = find_accessibility_faults(page)
    assert {fault.partition(" ")[0] for fault in found} >= {"color-contrast", "document-title", "html-has-lang"}
