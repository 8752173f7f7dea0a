"""The console of a Django project in a real browser: under servers of its own, below an address and in the admin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Page, expect

from retrysafe import RetrySafe
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.testing.builders import claim, complete
from tests.browser.conftest import load_axe, run_axe
from tests.browser.django_site import serve_django
from tests.browser.test_console import PHONE, WAIT_MILLISECONDS, Watch, reread, resolve, reveal

PLACES = ("/ops", "/admin/retrysafe/console")
PAGES = ("/", "/keys?state=uncertain", "/operations", "/outbox?dead=1", "/rollout", "/doctor", "/audit")


class DjangoSite(NamedTuple):
    address: str
    safe: RetrySafe
    uncertain: list[Record]
    """One for each place."""
    completed: Record


@pytest.fixture(scope="module", params=["gunicorn", "uvicorn"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, RetrySafe]]:
    folder = tmp_path_factory.mktemp(request.param)
    with serve_django(folder, request.param) as address, RetrySafe(f"sqlite:///{folder}/keys.db") as safe:
        yield address, safe


@pytest.fixture
def django_site(served: tuple[str, RetrySafe]) -> DjangoSite:
    address, safe = served
    do, name = safe.store.execute, uuid4().hex[:8]
    uncertain = [do(claim(f"{name}-{n}", target="POST /payments", now=9)).record for n in range(len(PLACES))]
    done = do(claim(f"paid-{name}", now=None))
    do(complete(done, b'{"charge": "ch_secret"}', now=None))
    return DjangoSite(address, safe, uncertain, done.record)


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_staff_log_in_and_superusers_act(browser: Browser, django_site: DjangoSite, script: bool) -> None:
    context = browser.new_context(java_script_enabled=script, base_url=django_site.address)
    context.set_default_timeout(WAIT_MILLISECONDS)
    page = context.new_page()
    watch = Watch(page, django_site.address)
    try:
        page.goto("/ops/")
        expect(page.locator("#id_username")).to_be_visible()
        log_in(page, "boss")
        expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
        page.goto("/admin/")
        page.get_by_role("link", name="Console", exact=True).click()
        expect(page.get_by_role("heading", name="Now", exact=True)).to_be_visible()
        for place, record in zip(PLACES, django_site.uncertain, strict=True):
            for path in PAGES:
                answer = page.goto(f"{place}{path}")
                assert answer is not None
                assert answer.status == 200, path
            resolve(page, record, "It did not happen", place)
            assert reread(django_site.safe, record).state is State.RELEASED
            reveal(page, django_site.completed, "ch_secret", place)
            page.goto(f"{place}/audit")
            expect(page.get_by_role("cell", name="boss").first).to_be_visible()
        assert watch.wrong == []
    finally:
        context.close()


def test_staff_look_and_their_forms_do_nothing(browser: Browser, django_site: DjangoSite) -> None:
    """In the admin site. A page of superusers has a form that staff's has not; both looks are accessible."""
    context = browser.new_context(base_url=django_site.address, viewport=PHONE)  # type: ignore[arg-type]
    context.set_default_timeout(WAIT_MILLISECONDS)
    page = context.new_page()
    try:
        page.goto("/admin/")
        log_in(page, "helper")
        path = f"/admin/retrysafe/console/keys/{django_site.uncertain[0].id.hex()}"
        page.goto(path)
        expect(page.get_by_text("refused: outcome unknown")).to_be_visible()
        assert page.locator("main form").count() == 0
        load_axe(page)
        assert run_axe(page) == []
        assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
        token = next(each["value"] for each in context.cookies() if each.get("name") == "retrysafe_console_csrf")
        sent = {"csrf": str(token), "because": "x", "attempt": "1", "outcome": "happened"}
        told = context.request.post(f"{path}/resolve", form=sent, headers={"Origin": django_site.address})
        assert told.status == 403
        assert reread(django_site.safe, django_site.uncertain[0]) == django_site.uncertain[0]
    finally:
        context.close()


def log_in(page: Page, name: str) -> None:
    page.fill("#id_username", name)
    page.fill("#id_password", "secret")
    page.get_by_role("button", name="Log in").click()
