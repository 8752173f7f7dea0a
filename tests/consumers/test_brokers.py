"""The same tests on RabbitMQ, NATS JetStream, Redis streams and Kafka (librdkafka's mock broker)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from retrysafe.consumers import Inbox, Message
from retrysafe.core.ops import Claim, Release
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from tests.consumers.brokers import REDELIVERY_SECONDS, Broker, Sent
from tests.consumers.child import inbox_at

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 120.0
MESSAGES = int(os.environ.get("RETRYSAFE_MESSAGES", "200"))


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)
    assert condition(), what


async def drained(broker: Broker) -> bool:
    """Whether no message is left after consumption has stopped. Unacknowledged messages go back to the queue first."""
    return await broker.left() == 0


async def consume_all(broker: Broker, inbox: Inbox, done: Callable[[], bool]) -> None:
    """Consume until the condition holds, and then until every message is acknowledged."""
    async with broker.consume(inbox) as task:
        await until(lambda: done() or task.done(), "the messages")
        if task.done():
            await task
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not await drained(broker):
            async with broker.consume(inbox):
                await asyncio.sleep(REDELIVERY_SECONDS)


def effects(database: Path) -> Counter[str]:
    db = sqlite3.connect(database)
    try:
        return Counter(row[0] for row in db.execute("SELECT id FROM effects"))
    finally:
        db.close()


def lines(database: Path) -> list[str]:
    path = database.with_suffix(".effects")
    return path.read_text().splitlines() if path.exists() else []


# Verdicts -------------------------------------------------------------------------------------------------------------


async def test_once_each_whatever_comes(broker: Broker, database: Path) -> None:
    """Messages that come twice, fail once, fail always, are refused, have no id, or have another message's id."""
    with RetrySafe(f"sqlite:///{database}", tx=str(database)) as safe:
        inbox = Inbox(safe, "billing", max_attempts=3, pause=lambda failures: 0.0)
        runs: Counter[str] = Counter()

        @inbox.handler
        def handle(message: Message, tx: sqlite3.Connection) -> None:
            tx.execute("INSERT INTO effects VALUES (?)", [message.body.decode()])
            runs[message.id] += 1
            if message.id == "poison" or (message.id == "flaky" and runs["flaky"] == 1):
                raise RuntimeError(f"cannot do {message.id}")

        await broker.make()
        good = [Sent("a", b"a"), Sent("b", b"b"), Sent("a", b"a")]
        await broker.send([*good, Sent("flaky", b"flaky"), Sent("poison", b"poison"), Sent("", b"nameless")])
        await consume_all(broker, inbox, lambda: effects(database).total() == 3 and runs["poison"] >= 3)
        assert effects(database) == {"a": 1, "b": 1, "flaky": 1}
        assert runs["flaky"] >= 2
        reasons = {letter.body: letter.reason for letter in await broker.dead()}
        assert set(reasons) == {b"poison", b"nameless"}
        # A consumer that is stopped before it has written the dead letter gets the message once more.
        assert re.search(r"failed [3-9] times", reasons[b"poison"])
        assert "cannot do poison" in reasons[b"poison"]
        assert "no id" in reasons[b"nameless"]
        await broker.send([Sent("a", b"something else")])
        await consume_all(broker, inbox, lambda: safe.counters.get("mismatched", 0) >= 1)
        assert effects(database).total() == 3


async def test_what_somebody_else_works_on_comes_again(broker: Broker, database: Path) -> None:
    with RetrySafe(f"sqlite:///{database}") as safe:
        inbox, handled = Inbox(safe, "billing", same="id"), []

        @inbox.handler
        async def handle(message: Message) -> None:
            handled.append(message.id)

        await broker.make()
        await broker.send([Sent("a", b"a")])
        claim: Claim = inbox.build_task(Message(body=b"a", id="a")).build_claim()
        fence = safe.execute(claim).record.fence
        async with broker.consume(inbox) as task:
            await until(lambda: safe.counters.get("busy", 0) >= 2 or task.done(), "it is tried again")
            assert not task.done()
            assert handled == []
            assert safe.execute(Release(claim.id, fence, "the other one gave up"))
            await until(lambda: handled == ["a"], "it is handled")
        await consume_all(broker, inbox, lambda: True)
        assert handled == ["a"]
        assert await broker.dead() == []


async def test_a_program_that_is_wrong_ends_and_keeps_its_message(broker: Broker, database: Path) -> None:
    """A wrong database configuration must not make a dead letter of a message."""
    with RetrySafe("memory://", tx=str(database)) as elsewhere:
        wrong = Inbox(elsewhere, "tests")
        wrong.handler(lambda message, tx: None)
        await broker.make()
        await broker.send([Sent("a", b"a")])
        async with broker.consume(wrong) as task:
            with pytest.raises(UsageError, match="no transaction of yours can reach"):
                await asyncio.wait_for(task, TIMEOUT_SECONDS)
    right = inbox_at(database, "transaction")
    with right.safe:
        await consume_all(broker, right, lambda: effects(database) == {"a": 1})


# Killed ---------------------------------------------------------------------------------------------------------------


async def killed(broker: Broker, database: Path, strength: str, moment: str, count: int) -> None:
    """A consumer process that kills itself at the given moment of the given message."""
    command = [sys.executable, "-m", "tests.consumers.child", broker.kind, broker.url, broker.name, str(database)]
    process = subprocess.Popen(
        [*command, strength, moment, str(count)], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        _, output = await asyncio.to_thread(process.communicate, timeout=2 * TIMEOUT_SECONDS)
        assert process.returncode == -signal.SIGKILL, output.decode()[-2000:]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
async def test_killed_between_commit_and_acknowledgement_with_the_guard(broker: Broker, database: Path) -> None:
    """The mark is stored, the broker has no acknowledgement, and delivers the message again."""
    await broker.make()
    await broker.send([Sent(name, name.encode()) for name in ("a", "b", "c")])
    await killed(broker, database, "guard", "ack", 2)
    inbox = inbox_at(database, "guard")
    with inbox.safe:
        await consume_all(broker, inbox, lambda: len(lines(database)) == 3)
        assert sorted(lines(database)) == ["a", "b", "c"]
        assert inbox.safe.counters["replayed"] >= 1


async def every_message_twice(broker: Broker, database: Path, messages: int) -> None:
    names = [f"message-{number}" for number in range(messages)]
    await broker.make()
    await broker.send([Sent(name, name.encode()) for name in (*names, *names)])
    for moment, share in (("ack", 5), ("handler", 4)):
        await killed(broker, database, "transaction", moment, messages // share)
    inbox = inbox_at(database, "transaction")
    with inbox.safe:
        await consume_all(broker, inbox, lambda: len(effects(database)) == messages)
    assert effects(database) == dict.fromkeys(names, 1)
    assert await broker.dead() == []


async def test_each_sent_twice_and_the_consumer_killed(broker: Broker, database: Path) -> None:
    await every_message_twice(broker, database, MESSAGES)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
async def test_a_long_run_of_that(broker: Broker, database: Path) -> None:
    await every_message_twice(broker, database, 10 * MESSAGES)
