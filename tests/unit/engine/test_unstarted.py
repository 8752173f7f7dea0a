"""A plain function that returns a coroutine has done nothing: its key is not used up, whoever calls it."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retrysafe.consumers import Done, Inbox, Later, Message
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.webhooks import Receiver
from tests.webhooks.senders import NOW, SENDERS

RUNS: list[str] = []


@pytest.fixture
def safe() -> RetrySafe:
    RUNS.clear()
    return RetrySafe("memory://")


async def work(message: Any) -> None:
    RUNS.append(message.id)


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as many people write it: it knows nothing of `async def`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def generate(message: Any) -> Any:
    yield RUNS.append(message.id)


class Handling:
    async def __call__(self, message: Any) -> None:
        RUNS.append(message.id)


def handle(inbox: Inbox, via: str) -> Any:
    message = Message(body=b"1", id="m")
    return inbox.process(message) if via == "thread" else asyncio.run(inbox.aprocess(message))


@pytest.mark.parametrize("via", ["thread", "loop"])
@pytest.mark.parametrize("handler", [traced(work), traced(generate)], ids=["coroutine", "generator"])
def test_a_message_whose_handler_did_nothing_is_not_done(safe: RetrySafe, handler: Any, via: str) -> None:
    """Before the fix it was acknowledged and marked, and the handler never ran."""
    broken, mended = Inbox(safe, "billing"), Inbox(safe, "billing")
    broken.handler(handler)
    mended.handler(work)
    verdict = handle(broken, via)
    assert isinstance(verdict, Later)
    assert "its work was not done" in verdict.why
    assert handle(mended, via) == Done(replayed=False)
    assert RUNS == ["m"]


@pytest.mark.parametrize("via", ["thread", "loop"])
def test_an_object_with_an_async_call_is_an_async_handler(safe: RetrySafe, via: str) -> None:
    inbox = Inbox(safe, "billing")
    inbox.handler(Handling())
    assert handle(inbox, via) == Done(replayed=False)
    assert RUNS == ["m"]


@pytest.mark.parametrize("via", ["thread", "loop"])
def test_an_event_whose_handler_did_nothing_is_sent_again(safe: RetrySafe, via: str) -> None:
    stripe = SENDERS["stripe"]
    receiver = Receiver(safe, stripe.scheme, clock=lambda: NOW)
    receiver.on()(traced(work))
    body = b'{"id": "evt_1", "type": "invoice.paid"}'
    headers = list(stripe.scheme.sign(body, id="evt_1", now=NOW).items())
    for _ in range(2):
        told = receiver.receive(headers, body) if via == "thread" else asyncio.run(receiver.areceive(headers, body))
        assert told.status == 500
    assert RUNS == []


def test_a_function_that_did_nothing_keeps_its_key_open(safe: RetrySafe) -> None:
    """Before the fix its key was marked done, although nothing had run."""

    async def send(order: int) -> str:
        RUNS.append("sent")
        return "sent"

    with pytest.raises(UsageError, match=r"the coroutine .*send\(\), which nobody awaits"):
        safe.once("receipt:{order}", scope="receipts")(traced(send))(7)
    assert asyncio.run(safe.once("receipt:{order}", scope="receipts")(send)(7)) == "sent"
    assert RUNS == ["sent"]


def test_a_transaction_that_did_nothing_is_rolled_back(tmp_path: Path) -> None:
    async def write(tx: sqlite3.Connection, order: int) -> str:
        return "never"

    url = tmp_path / "shop.db"
    with RetrySafe(f"sqlite:///{url}", tx=str(url)) as safe:
        pay = safe.transactional("pay:{order}")(traced(write))
        for _ in range(2):
            with pytest.raises(UsageError, match="its work was not done"):
                pay(order=7)
