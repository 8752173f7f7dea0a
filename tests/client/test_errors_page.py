"""The client's errors are on the errors page."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from retrysafe import errors
from retrysafe.client import errors as own

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
CLASSES = [found for found in vars(own).values() if inspect.isclass(found) and found.__module__ == own.__name__]


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.__name__)
def test_it_is_on_the_page_with_an_anchor_of_its_own(found: type[errors.RetrySafeError]) -> None:
    assert f'<a id="{found.anchor}"></a>`{found.__name__}`' in PAGE.read_text()
    others = [each for each in vars(errors).values() if inspect.isclass(each) and hasattr(each, "anchor")]
    assert found.anchor not in [each.anchor for each in others]
