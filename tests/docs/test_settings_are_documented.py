"""The reference pages that are written by hand name everything there is: policy fields, middleware options, events."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import get_args

import pytest

from retrysafe.engine.events import EventName
from retrysafe.policy import DAY, DEFAULT_LEASE_SECONDS, PRESETS, Policy
from retrysafe.web.capture import NEVER_STORED
from retrysafe.web.settings import STATUS_PATH, Options

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
FIRST_CELL = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
FIELDS = [field.name for field in dataclasses.fields(Policy)]


def read_rows(page: str, header: str) -> dict[str, str]:
    """The rows of the table whose header line begins so, by the name in their first cell."""
    text = (REFERENCE / page).read_text()
    lines = text[text.index(f"\n| {header} |") + 1 :].split("\n\n")[0].splitlines()
    return {found[1]: line for line in lines if (found := FIRST_CELL.match(line))}


def test_every_field_of_a_policy_is_on_its_page() -> None:
    assert list(read_rows("policy.md", "field")) == FIELDS


def test_every_preset_is_on_the_page_of_policies() -> None:
    assert list(read_rows("policy.md", "preset")) == list(PRESETS)


def test_every_option_of_the_middlewares_is_on_the_page_of_http() -> None:
    assert list(read_rows("http.md", "option")) == list(Options.__annotations__)


def test_every_event_is_on_its_page() -> None:
    assert list(read_rows("events.md", "event")) == list(get_args(EventName))


# Defaults -------------------------------------------------------------------------------------------


def format_default(value: object) -> str:
    """A default as the page writes it."""
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, int):
        return f"{value >> 20} MiB"
    assert isinstance(value, float)
    return f"{value / 3600:g} h" if value >= 3600 else f"{value:g} s"


@pytest.mark.parametrize("name", FIELDS)
def test_the_page_says_the_default_of_each_field(name: str) -> None:
    assert f"| {format_default(getattr(Policy(), name))} |" in read_rows("policy.md", "field")[name]


@pytest.mark.parametrize("name", PRESETS)
def test_the_page_says_what_each_preset_is(name: str) -> None:
    preset = PRESETS[name]
    days = preset.retention / DAY
    kept = "forever" if math.isinf(days) else "24 h" if days == 1 else f"{days:g} days"
    assert f"| {preset.failures} | {preset.invalid} | {kept} |" in read_rows("policy.md", "preset")[name]


def test_the_page_of_http_says_what_the_options_are_by_default() -> None:
    rows = read_rows("http.md", "option")
    assert ", ".join(map(str, sorted(NEVER_STORED))) in rows["never_stored"]
    assert STATUS_PATH in rows["status_path"]


def test_everything_that_holds_a_lease_has_one_default() -> None:
    from inspect import signature

    from retrysafe.consumers import Inbox
    from retrysafe.webhooks import Receiver
    from retrysafe.worker.enqueuer import Enqueuer

    assert Policy().lease == DEFAULT_LEASE_SECONDS
    for made in (Inbox, Receiver, Enqueuer):
        assert signature(made).parameters["lease"].default == DEFAULT_LEASE_SECONDS
