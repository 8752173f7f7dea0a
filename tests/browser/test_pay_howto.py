"""`pay.js` of docs/howto/rollout.md, in a real browser. The answers are scripted; no server is needed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, Route

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/rollout.md"
SITE = "http://127.0.0.1:9"  # nothing listens: every request is answered here

LOST = "lost"
Scripted = str | tuple[int, bool | None, bool | None]
"""A lost answer, or its status and, for a problem, `retry_same_key` and `safe_new_key`."""

DONE: Scripted = (201, None, None)
BUSY: Scripted = (409, True, False)
GATEWAY: Scripted = (502, None, None)
MISMATCH: Scripted = (422, False, True)
FAILED: Scripted = (500, False, False)


class Shop:
    """A page with the function, and the keys that its requests had."""

    def __init__(self, browser: Browser) -> None:
        found = re.search(r"```js[^\n]*\n(.*?)```", PAGE.read_text(), re.DOTALL)
        assert found
        self.script = found[1].replace("export async", "window.pay = async")
        self.answers: list[Scripted] = []
        self.keys: list[str] = []
        self.page: Page = browser.new_page()
        self.page.route(f"{SITE}/**", self.answer)
        self.page.goto(SITE)

    def answer(self, route: Route) -> None:
        if not route.request.url.endswith("/payments"):
            route.fulfill(content_type="text/html", body=f"<script>{self.script}</script>")
            return
        self.keys.append(route.request.headers["idempotency-key"])
        scripted = self.answers.pop(0)
        if isinstance(scripted, str):
            route.abort()
            return
        status, retry_same_key, safe_new_key = scripted
        if retry_same_key is None:
            route.fulfill(status=status, json={"charged": 500})
            return
        problem = {"retry_same_key": retry_same_key, "safe_new_key": safe_new_key}
        route.fulfill(status=status, content_type="application/problem+json", body=json.dumps(problem))

    def pay(self, *answers: Scripted) -> int:
        """Pay order 7 without pauses. Returns the status of the last answer."""
        self.answers = list(answers)
        status = self.page.evaluate("async () => (await pay(7, 500, async () => {})).status")
        assert self.answers == []
        return int(status)


@pytest.fixture
def shop(browser: Browser) -> Shop:
    return Shop(browser)


def test_one_key_until_the_answer_and_a_new_one_after_it(shop: Shop) -> None:
    assert shop.pay(LOST, BUSY, GATEWAY, DONE) == 201
    assert len(set(shop.keys)) == 1
    assert shop.pay(DONE) == 201
    assert len(set(shop.keys)) == 2


def test_a_page_that_is_reloaded_sends_the_same_key(shop: Shop) -> None:
    with pytest.raises(Error, match="no final answer yet"):
        shop.pay(LOST, LOST, LOST, LOST, LOST)
    shop.page.reload()
    assert shop.pay(DONE) == 201
    assert len(shop.keys) == 6
    assert len(set(shop.keys)) == 1


@pytest.mark.parametrize(
    ("answer", "keys"), [(MISMATCH, 2), (FAILED, 1), ((500, None, None), 1), ((402, None, None), 2)]
)
def test_the_key_is_given_up_only_where_a_new_one_is_safe(shop: Shop, answer: Scripted, keys: int) -> None:
    shop.pay(answer)
    shop.pay(DONE)
    assert len(set(shop.keys)) == keys
