"""docs/howto/write-a-store.md says the whole seam: every field of Capabilities and every optional protocol."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from retrysafe.stores import base
from retrysafe.stores.base import Capabilities

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "write-a-store.md").read_text("utf-8")
PARTS_OF_EVERY_STORE = {"Store", "AsyncStore", "Backend"}


def list_protocols() -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(base).items()
        if getattr(value, "_is_protocol", False) and value.__module__ == base.__name__
    }


def test_the_page_has_every_field_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `?(\w+)`? \|", PAGE, re.MULTILINE))
    declared = {
        each.name: "required" if each.default is MISSING else str(each.default) for each in fields(Capabilities)
    }
    assert rows == declared


def test_the_page_has_every_optional_protocol_with_its_members() -> None:
    for name, protocol in list_protocols().items():
        if name in PARTS_OF_EVERY_STORE:
            continue
        [row] = [line for line in PAGE.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]]
        members = [each for each in vars(protocol) if not each.startswith("_")]
        assert members
        assert [each for each in members if not re.search(rf"`{each}\b", row)] == [], row


def test_every_field_and_protocol_says_what_it_is() -> None:
    source = Path(base.__file__).read_text("utf-8")
    for each in fields(Capabilities):
        assert re.search(rf'^    {each.name}: .*\n    """', source, re.MULTILINE), f"Capabilities.{each.name}"
    assert [name for name, protocol in list_protocols().items() if not protocol.__doc__] == []
