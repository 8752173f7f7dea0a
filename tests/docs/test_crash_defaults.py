"""The page that compares what happens after a crash says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrysafe import Policy, RetrySafe, webhooks
from retrysafe.consumers import Inbox
from retrysafe.consumers.inbox import MAX_ATTEMPTS as MESSAGE_ATTEMPTS
from retrysafe.jobs import QueueAdapter
from retrysafe.jobs.task import MAX_ATTEMPTS as JOB_ATTEMPTS
from retrysafe.mcp import Tools

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "after-a-crash.md"
ROWS = {
    cells[0]: cells[2]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5
}
WORDS = {"uncertain": "**uncertain**", "rerun": "**runs again**"}


def defaults() -> dict[str, str]:
    safe = RetrySafe("memory://")
    task = QueueAdapter(safe).fence(lambda n: n, name="t")
    return {
        "HTTP route, guard": Policy().abandoned,
        "function": Policy.preset("function").abandoned,
        "tool of an agent": Tools(safe, scope="me").policy.abandoned,
        "job": task.policy.abandoned,
        "webhook": webhooks.Receiver(safe, webhooks.Stripe("whsec_x")).policy.abandoned,
        "message": Inbox(safe, "x").policy.abandoned,
    }


@pytest.mark.parametrize("part", defaults())
def test_the_page_says_what_the_default_is(part: str) -> None:
    assert ROWS[part].startswith(WORDS[defaults()[part]])


def test_and_how_often() -> None:
    assert f"`max_attempts` ({JOB_ATTEMPTS})" in ROWS["job"]
    assert f"`max_attempts` ({MESSAGE_ATTEMPTS})" in ROWS["message"]


def test_the_other_choice_is_one_that_works() -> None:
    safe = RetrySafe("memory://")
    assert QueueAdapter(safe).fence(lambda n: n, name="t", repeatable=False).policy.abandoned == "uncertain"
    assert Inbox(safe, "x", abandoned="uncertain").policy.abandoned == "uncertain"
    assert Policy.preset("function", abandoned="rerun").abandoned == "rerun"
