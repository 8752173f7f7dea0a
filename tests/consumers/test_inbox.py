"""The inbox without a broker: the verdict on each message, and its reason."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe.consumers import Dead, Done, Inbox, Later, Message, Reject, Verdict
from retrysafe.consumers.message import find_usual_id, normalize_headers
from retrysafe.consumers.verdicts import MAX_PAUSE_SECONDS, compute_backoff
from retrysafe.core.ops import List, Op, Suspect
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import StoreUnavailable, UsageError
from retrysafe.stores.memory import MemoryStore
from tests.consumers.test_brokers import effects


@pytest.fixture
def safe() -> Iterator[RetrySafe]:
    with RetrySafe("memory://") as made:
        yield made


def message(id: str = "a", body: bytes = b"a", **more: Any) -> Message:
    return Message(body=body, id=id, source="queue", **more)


def process(inbox: Inbox, given: Message, via: str = "thread") -> Verdict:
    return inbox.process(given) if via == "thread" else asyncio.run(inbox.aprocess(given))


@pytest.mark.parametrize("via", ["thread", "loop"])
@pytest.mark.parametrize("colour", ["def", "async def"])
@pytest.mark.parametrize("strength", ["guard", "transaction"])
def test_once_in_every_colour_and_strength(database: Path, via: str, colour: str, strength: str) -> None:
    import aiosqlite

    runs: list[str] = []
    tx: Any = str(database) if colour == "def" else lambda: aiosqlite.connect(database)
    with RetrySafe(f"sqlite:///{database}", tx=tx) as safe:
        inbox = Inbox(safe, "billing")

        def plain(message: Message) -> None:
            runs.append(message.id)

        async def awaited(message: Message) -> None:
            runs.append(message.id)

        def plain_tx(message: Message, tx: sqlite3.Connection) -> None:
            tx.execute("INSERT INTO effects VALUES (?)", [message.id])
            plain(message)

        async def awaited_tx(tx: Any, message: Message) -> None:
            await tx.execute("INSERT INTO effects VALUES (?)", [message.id])
            await awaited(message)

        handlers = {("def", "guard"): plain, ("async def", "guard"): awaited, ("def", "transaction"): plain_tx}
        inbox.handler(handlers.get((colour, strength), awaited_tx))
        assert [process(inbox, message(), via) for _ in range(3)] == [Done(), Done(replayed=True), Done(replayed=True)]
        assert process(inbox, message("b"), via) == Done()
    assert runs == ["a", "b"]
    assert effects(database) == ({"a": 1, "b": 1} if strength == "transaction" else {})


def test_two_consumers_each_handle_it_once(safe: RetrySafe) -> None:
    runs: list[str] = []
    for name in ("billing", "mailing"):
        inbox = Inbox(safe, name)
        inbox.handler(lambda message, name=name: runs.append(name))
        assert isinstance(inbox.process(message()), Done)
        assert isinstance(inbox.process(message()), Done)
    assert runs == ["billing", "mailing"]


# Its id ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (message("p", headers={"message-id": "h"}), "p"),
        (message("", headers={"message-id": "h", "x-message-id": "x"}), "h"),
        (message("", headers={"nats-msg-id": "n"}), "n"),
        (message("", headers={"idempotency-key": "k"}), "k"),
        (message("", headers={"ce-id": "1", "ce-source": "/shop"}), '["/shop", "1"]'),
        (message("", headers={"ce_id": "1", "ce_source": "/shop"}), '["/shop", "1"]'),
        (message("", headers={"cloudevents:id": "1"}), '["", "1"]'),
        (message("", headers={"message-id": "", "other": "x"}), None),
    ],
)
def test_where_an_id_usually_is(given: Message, found: str | None) -> None:
    assert find_usual_id(given) == found


def test_headers_are_text_with_lower_case_names() -> None:
    assert normalize_headers({"A": "x", b"B": b"y", "C": 7, "D": None, "E": [1]}) == {"a": "x", "b": "y", "c": "7"}
    assert normalize_headers([("A", b"\xff")]) == {"a": "\\xff"}
    assert normalize_headers(None) == {}


def test_the_user_may_say_where_the_id_is(safe: RetrySafe) -> None:
    seen: list[str] = []
    for number, choose in enumerate(("X-Order", lambda message: message.json()["order"])):
        inbox = Inbox(safe, f"c{number}", id=choose)  # type: ignore[arg-type]  # a str and a function
        inbox.handler(lambda message: seen.append(message.id))
        given = message("property", b'{"order": "o-1"}', headers={"x-order": "o-1"})
        assert [inbox.process(given), inbox.process(given)] == [Done(), Done(replayed=True)]
    assert seen == ["o-1", "o-1"]


def test_without_an_id_it_is_refused_or_known_by_what_it_says(safe: RetrySafe) -> None:
    runs: list[bytes] = []
    strict, lenient = Inbox(safe, "strict"), Inbox(safe, "lenient", missing="payload")
    for inbox in (strict, lenient):
        inbox.handler(lambda message: runs.append(message.body))
    verdict = strict.process(message(""))
    assert isinstance(verdict, Dead)
    assert "has no id" in verdict.why
    assert runs == []
    assert [lenient.process(message("", body)) for body in (b"x", b"x", b"y")] == [Done(), Done(True), Done()]
    assert runs == [b"x", b"y"]


def test_an_id_that_cannot_be_read_or_used_is_the_message_s_fault(safe: RetrySafe) -> None:
    inbox = Inbox(safe, "x", id=lambda message: message.json()["order"])
    inbox.handler(lambda message: None)
    assert isinstance(inbox.process(message("", b"no json")), Dead)
    assert isinstance(inbox.process(message("", b'{"order": "' + b"x" * 2000 + b'"}')), Dead)
    assert inbox.process(message("", b'{"order": 7}')) == Done()


def test_one_id_for_two_messages_is_not_taken_for_a_repetition(safe: RetrySafe) -> None:
    strict, lenient = Inbox(safe, "strict"), Inbox(safe, "lenient", same="id")
    for inbox in (strict, lenient):
        inbox.handler(lambda message: None)
        inbox.process(message("a", b"one"))
    verdict = strict.process(message("a", b"two"))
    assert isinstance(verdict, Dead)
    assert "something else" in verdict.why
    assert lenient.process(message("a", b"two")) == Done(replayed=True)


# Failures -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", ["guard", "transaction"])
def test_a_handler_that_fails_leaves_nothing_and_is_tried_again(database: Path, strength: str) -> None:
    with RetrySafe(f"sqlite:///{database}", tx=str(database)) as safe:
        inbox, fails = Inbox(safe, "billing", max_attempts=3, pause=lambda failures: failures * 10.0), [True, True]

        def guarded(message: Message) -> None:
            if fails:
                fails.pop()
                raise RuntimeError("not yet")

        def in_transaction(message: Message, tx: sqlite3.Connection) -> None:
            tx.execute("INSERT INTO effects VALUES ('a')")
            guarded(message)

        inbox.handler(guarded if strength == "guard" else in_transaction)
        first, second = inbox.process(message()), inbox.process(message(failures=1, deliveries=2))
        assert first == Later(10.0, "its handler failed with RuntimeError: not yet", failed=True)
        assert second == Later(20.0, "its handler failed with RuntimeError: not yet", failed=True)
        assert effects(database) == {}
        assert inbox.process(message(failures=2, deliveries=3)) == Done()


def test_what_keeps_failing_and_what_is_rejected_goes_to_the_dead_letters(safe: RetrySafe) -> None:
    inbox = Inbox(safe, "billing", max_attempts=3)

    @inbox.handler
    def handle(message: Message) -> None:
        raise Reject("no such customer") if message.id == "bad" else RuntimeError("broken")

    assert inbox.process(message(failures=2, deliveries=3)) == Dead(
        "its handler failed 3 times, the last time with RuntimeError: broken"
    )
    assert inbox.process(message("bad")) == Dead("its handler rejected it: no such customer")


def test_a_message_that_kills_its_handler_is_put_aside(safe: RetrySafe) -> None:
    """Nothing is raised in that case, but the record counts. A person who repaired the handler may send the message
    anew."""
    inbox, deadly = Inbox(safe, "billing", max_attempts=2), [True]

    class Killed(BaseException):
        """The process died here."""

    @inbox.handler
    def handle(message: Message) -> None:
        if deadly:
            raise Killed

    for deliveries in (1, 2):
        with pytest.raises(Killed):
            inbox.process(message(deliveries=deliveries))
    verdict = inbox.process(message(deliveries=3))
    assert isinstance(verdict, Dead)
    assert "never came to an end" in verdict.why
    deadly.clear()
    assert inbox.process(message(deliveries=1)) == Done()


def test_what_somebody_else_works_on_comes_later(safe: RetrySafe) -> None:
    inbox = Inbox(safe, "billing")
    inbox.handler(lambda message: None)
    safe.execute(inbox.build_task(message()).build_claim())
    verdict = inbox.process(message(failures=99))
    assert isinstance(verdict, Later)
    assert not verdict.failed


def test_an_unknown_outcome_is_shown_to_a_person(safe: RetrySafe) -> None:
    inbox = Inbox(safe, "billing", abandoned="uncertain")
    inbox.handler(lambda message: None)
    safe.execute(inbox.build_task(message()).build_claim())
    (record,) = safe.execute(List()).records
    assert record.on_lapse == "uncertain"
    assert safe.execute(Suspect(record.id, record.fence, "died"))
    verdict = inbox.process(message())
    assert isinstance(verdict, Dead)
    assert "is unknown" in verdict.why


def test_a_store_that_is_down_is_not_the_message_s_fault() -> None:
    class Down(MemoryStore):
        def execute(self, op: Op[Any]) -> Any:
            raise StoreUnavailable("nobody answers")

    with RetrySafe(Down()) as safe:
        inbox = Inbox(safe, "billing", max_attempts=1)
        inbox.handler(lambda message: None)
        verdict = inbox.process(message(failures=99, deliveries=100))
    assert isinstance(verdict, Later)
    assert not verdict.failed


def test_an_error_of_ours_that_the_handler_raised_is_the_handler_s(safe: RetrySafe) -> None:
    inbox = Inbox(safe, "billing", max_attempts=2)

    @inbox.handler
    def handle(message: Message) -> None:
        raise UsageError("of another RetrySafe that it uses")

    verdict = inbox.process(message())
    assert isinstance(verdict, Later)
    assert verdict.failed


def test_pauses_grow_to_a_limit() -> None:
    pauses = [compute_backoff(failures) for failures in range(1, 40)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(pauses) == pauses[-1] == MAX_PAUSE_SECONDS


# Mistakes -------------------------------------------------------------------------------------------------------------


def test_mistakes_are_told_at_once(safe: RetrySafe) -> None:
    for wrong in ({"missing": "ignore"}, {"same": "header"}, {"max_attempts": 0}, {"id": 7}):
        with pytest.raises(UsageError):
            Inbox(safe, "x", **wrong)
    with pytest.raises(UsageError, match="name the consumer"):
        Inbox(safe, "")
    inbox = Inbox(safe, "x")
    with pytest.raises(UsageError, match="has no handler"):
        inbox.process(message())
    with pytest.raises(UsageError, match="asks for `tx`"):
        inbox.handler(lambda message, tx: None)
    with pytest.raises(UsageError, match="takes the message"):
        inbox.handler(lambda one, two: None)
    inbox.handler(lambda message: None)
    with pytest.raises(UsageError, match="already"):
        inbox.handler(lambda message: None)
