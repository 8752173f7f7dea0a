"""S28: consumers log a message by its record's id, never by its own id, and without the text of the handler's error.
The dead letter, which carries the message itself, has the whole reason."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from retrysafe.consumers import Dead, Inbox, Later, Message, Reject
from retrysafe.core.keys import record_id
from retrysafe.core.ops import Op, Suspect
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.memory import MemoryStore

ID = "canary-id-4242"
WORDS = "canary-words of a handler"


@pytest.fixture
def safe() -> Iterator[RetrySafe]:
    with RetrySafe(MemoryStore()) as made:
        yield made


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """Everything that retrysafe logged, tracebacks included."""
    formatter = logging.Formatter("%(levelname)s %(name)s %(message)s")
    lines = [formatter.format(each) for each in caplog.records if each.name.startswith("retrysafe")]
    assert lines, "nothing was logged: there is nothing to scan"
    return "\n".join(lines)


def message(body: bytes = b"canary-body", **more: Any) -> Message:
    return Message(body=body, id=ID, source="queue", **more)


@pytest.mark.parametrize("kind", [ValueError, Reject])
@pytest.mark.parametrize("failures", [0, 4])
def test_a_handler_that_fails(
    safe: RetrySafe, caplog: pytest.LogCaptureFixture, kind: type[Exception], failures: int
) -> None:
    inbox = Inbox(safe, "billing")

    @inbox.handler
    def fails(message: Message) -> None:
        raise kind(WORDS)

    verdict = inbox.process(message(failures=failures))
    assert isinstance(verdict, Dead | Later)
    assert WORDS in verdict.why, "the dead letter says why"
    text = logged(caplog)
    assert "canary" not in text
    assert kind.__name__ in text
    assert record_id("message", "default", "billing", ID).hex()[:16] in text


def test_an_id_that_was_used_for_something_else(safe: RetrySafe, caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox(safe, "billing")
    inbox.handler(lambda message: None)
    inbox.process(message())
    assert isinstance(inbox.process(message(body=b"another")), Dead)
    assert "canary" not in logged(caplog)


def test_a_message_whose_outcome_is_unknown(safe: RetrySafe, caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox(safe, "billing", abandoned="uncertain")
    inbox.handler(lambda message: None)
    record = safe.execute(inbox.build_task(message()).build_claim()).record
    assert safe.execute(Suspect(record.id, record.fence, WORDS))
    assert isinstance(inbox.process(message()), Dead)
    assert "canary" not in logged(caplog)


def test_an_id_that_cannot_be_read(safe: RetrySafe, caplog: pytest.LogCaptureFixture) -> None:
    def choose(message: Message) -> str:
        raise KeyError(WORDS)

    inbox = Inbox(safe, "billing", id=choose)
    inbox.handler(lambda message: None)
    assert isinstance(inbox.process(message()), Dead)
    text = logged(caplog)
    assert "canary" not in text
    assert "KeyError" in text


def test_a_store_that_is_away_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryStore):
        def execute(self, op: Op[Any]) -> Any:
            raise StoreUnavailable(f"no connection for {ID!r}")

    with RetrySafe(Away()) as safe:
        inbox = Inbox(safe, "billing")
        inbox.handler(lambda message: None)
        verdict = inbox.process(message())
    assert isinstance(verdict, Later)
    assert "canary" not in verdict.logged
    assert "no connection" in verdict.logged, "the words about the store are what the operator needs"
