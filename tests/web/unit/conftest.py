from __future__ import annotations

import pytest

from retrysafe.engine import resending


@pytest.fixture(autouse=True)
def quickly_tired(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is down stays down in these tests, so that no test waits half a minute for it."""
    monkeypatch.setattr(resending, "RESEND_DELAYS_SECONDS", (0.0,) * 4)
    monkeypatch.setattr(resending, "RESEND_LIMIT_SECONDS", 0.0)
