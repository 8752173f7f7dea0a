"""What a client reads of an operation that an operator or its failures ended: a problem with a page, which says whether
a new key is safe. A client that believes a wrong yes pays twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.client.decide import AnsweredAttempt, AttemptState, FinishVerdict, decide
from retrysafe.client.settings import Retries
from retrysafe.core.ops import List
from retrysafe.core.problem_names import problem_name
from retrysafe.engine.problem_documents import build_page_address
from retrysafe.errors import NotFinished
from retrysafe.operations import Operation

KEY = "order-7"


@pytest.fixture
def safe() -> Iterator[RetrySafe]:
    with RetrySafe("memory://") as safe:
        yield safe


def declare(safe: RetrySafe, *, undoable: bool, attempts: int) -> Operation:
    """Three calls to other systems. The last one fails always; the second has an undo if `undoable`."""
    op = safe.operation("order", max_attempts=attempts)

    def take_back(result: str | None, *, key: str) -> None: ...

    @op.foreign(tries=1, undo=take_back)
    def reserve(*, key: str) -> str:
        return "reserved"

    @op.foreign(tries=1, undo=take_back if undoable else None)
    def charge(*, key: str) -> str:
        return "charged"

    @op.foreign(tries=1, undo=take_back)
    def ship(*, key: str) -> str:
        raise ConnectionError("no answer")

    @op.body
    def body() -> Answer:
        return Answer(201, [reserve(), charge(), ship()])

    return op


def find_id(safe: RetrySafe, op: Operation) -> bytes:
    with pytest.raises(NotFinished):
        op(key=KEY)
    (record,) = [each for each in safe.store.execute(List()).records if each.key == KEY]
    return record.id


def cancel(safe: RetrySafe, undoable: bool) -> Operation:
    op = declare(safe, undoable=undoable, attempts=5)
    op.cancel_id(find_id(safe, op), "the customer asks for it")
    return op


def undo(safe: RetrySafe, undoable: bool) -> Operation:
    op = declare(safe, undoable=undoable, attempts=5)
    op.undo_id(find_id(safe, op), "the customer asks for it")
    return op


def give_up(safe: RetrySafe, undoable: bool) -> Operation:
    return declare(safe, undoable=undoable, attempts=1)


@pytest.mark.parametrize(
    ("end", "undoable", "status", "name", "new_key"),
    [
        (cancel, True, 409, "operation-cancelled", False),
        (undo, True, 409, "operation-undone", True),
        (undo, False, 409, "operation-undone-in-part", False),
        (give_up, True, 502, "operation-given-up", True),
        (give_up, False, 502, "operation-undone-in-part", False),
    ],
)
def test_a_new_key_is_safe_only_if_nothing_is_left(
    safe: RetrySafe, end: Callable[[RetrySafe, bool], Operation], undoable: bool, status: int, name: str, new_key: bool
) -> None:
    op = end(safe, undoable)
    answer: Answer = op(key=KEY)
    told: dict[str, Any] = answer.json()
    assert (answer.status, told["status"], problem_name(told["type"])) == (status, status, name)
    assert (told["retry_same_key"], told["safe_new_key"]) == (False, new_key)
    headers = dict(answer.headers)
    assert headers["content-type"] == "application/problem+json"
    assert headers["link"] == f'<{build_page_address(name)}>; rel="describedby"'
    again: Answer = op(key=KEY)
    assert (again.status, again.body, again.headers) == (answer.status, answer.body, answer.headers)
    attempt = AnsweredAttempt(answer.status, headers, answer.body)
    assert isinstance(decide(attempt, AttemptState(sends=1), Retries()), FinishVerdict), "the caller decides, no client"
