"""A route that runs an operation without `strength="operation"` (decision 21)."""

from __future__ import annotations

import logging

import pytest

from retrysafe import Policy
from retrysafe.core.states import State
from tests.web.operations.test_accepted import BOOK, KEY, Open, place, shop

__all__ = ["place", "shop"]

REQUEST = Policy(failures="release")


def test_it_is_refused_before_anything_happens(shop: Open, caplog: pytest.LogCaptureFixture) -> None:
    ordering, call = shop(REQUEST, strength="guard")
    with caplog.at_level(logging.ERROR):
        refused = call("POST", "/orders", json=BOOK, headers=KEY)
    assert refused.status_code == 500
    assert "strength" not in refused.text, "that is for the developer, not for the client"
    assert (ordering.calls, ordering.w.items(), ordering.w.sent) == ([], [], [])


def test_the_message_names_the_operation_the_key_and_the_fix(shop: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    from retrysafe.errors import OperationError

    ordering, call = shop(REQUEST, strength="guard")
    told: list[str] = []
    start = ordering.op.start

    def noting(*args: object, **kwargs: object) -> object:
        try:
            return start(*args, **kwargs)
        except OperationError as error:
            told.append(str(error))
            raise

    monkeypatch.setattr(ordering.op, "start", noting)
    call("POST", "/orders", json=BOOK, headers=KEY)
    assert len(told) == 1
    for word in ("'create_order'", "'k'", "claimed already", "strength='operation'"):
        assert word in told[0]
    # The guard stores its handler's failure like any other; nothing is left claimed or uncertain.
    assert ordering.w.state() is State.COMPLETED
