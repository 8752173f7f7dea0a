"""A time limit by signal, whose handler raises: it reaches its caller, and is not taken for the server's silence."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from retrysafe import Policy, RetrySafe
from retrysafe.core.states import State
from retrysafe.testing.builders import listing
from tests.faults.holding import HOLDING, Holding
from tests.opening import patient, unique, with_option
from tests.waiting import until

PATIENCE = 60.0


class TimeIsUp(Exception):
    """What the handler raises: an Exception, as of many libraries that limit time."""


@pytest.fixture(params=[pytest.param(store, marks=pytest.mark.store(store)) for store in HOLDING])
def proxy(request: pytest.FixtureRequest) -> Iterator[Holding]:
    store = request.param
    url = patient(store, request.getfixturevalue(f"{store}_url"))
    made: Holding = HOLDING[store](with_option(url, "table" if store == "postgres" else "prefix", unique("signal_")))
    yield made
    made.deliver()
    made.close()


@pytest.fixture
def limited() -> Iterator[None]:
    def over(number: int, frame: Any) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGUSR1, over)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("message", [1, 2])
def test_a_time_limit_that_comes_while_it_claims_ends_the_call(proxy: Holding, message: int) -> None:
    """The claim, or its reply, is under way. Taken for a silent server, the claim was sent again, and the function ran
    after its caller had been told to stop."""
    safe = RetrySafe(proxy.url)
    safe.migrate()
    ran: list[str] = []

    @safe.once("charge:{order}", scope="signals", policy=Policy.preset("function", lease=600))
    def charge(order: str) -> str:
        ran.append(order)
        return order

    charge("first")  # whatever a connection begins with has been said
    proxy.hold(message, alone=True)
    threading.Thread(target=interrupt, args=(proxy,), daemon=True).start()
    with pytest.raises(TimeIsUp):
        charge("second")
    assert ran == ["first"]
    proxy.deliver()
    until(lambda: given_back(safe), PATIENCE, "the claim to be given back")
    assert charge("second") == "second"
    assert ran == ["first", "second"]
    safe.close()


def interrupt(proxy: Holding) -> None:
    """When the main thread waits for what is held back."""
    assert proxy.held.wait(PATIENCE)
    os.kill(os.getpid(), signal.SIGUSR1)


def given_back(safe: RetrySafe) -> bool:
    return {record.state for record in safe.execute(listing(now=None)).records} == {State.COMPLETED, State.RELEASED}
