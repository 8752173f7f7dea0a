from __future__ import annotations

import pytest

from retrysafe.engine import resending


@pytest.fixture(autouse=True)
def quickly_tired(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is down stays down in these tests: nobody has to wait for it for half a minute."""
    monkeypatch.setattr(resending, "PAUSES", (0.0,) * 4)
    monkeypatch.setattr(resending, "AT_MOST", 0.0)
