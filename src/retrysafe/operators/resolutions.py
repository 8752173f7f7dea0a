"""What a resolution may contain: decided once, for the command line and the console. Pure. A resolution is final, so a
form that contradicts itself is refused: it is not guessed what was meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from retrysafe.core.records import Answer, Record
from retrysafe.engine.resolving import check_answer
from retrysafe.engine.sealing import is_sealed
from retrysafe.errors import UsageError

DEFAULT_STATUS = 200
DEFAULT_CONTENT_TYPE = "application/json"
BODYLESS_STATUSES = frozenset({204, 205, 304})
NOTHING_CHANGED = "Nothing was changed"


class GivenAnswer(NamedTuple):
    """What an operator gave of an answer. None: not given; a form sends its default values, and those count as None."""

    wanted: bool = False
    """Whether retries are to get it: `--answer`, or the box of the form."""
    body: bytes = b""
    status: int | None = None
    content_type: str | None = None

    def describe_parts(self) -> str:
        """What was given, for a message. Empty if nothing was."""
        parts = [f"a body of {len(self.body):,} bytes"] if self.body else []
        parts += [f"the status {self.status}"] if self.status is not None else []
        parts += [f"the content type {self.content_type!r}"] if self.content_type is not None else []
        return ", ".join(parts)


def decide_answer(*, happened: bool, given: GivenAnswer) -> Answer | None:
    """The answer that retries get; None if it did not happen, or nobody has the answer. Raises UsageError."""
    parts = given.describe_parts()
    if not happened and (given.wanted or parts):
        raise UsageError(
            f"you say that it did not happen, and give an answer to replay ({parts or 'an empty one'}): the next retry "
            f"would run, and never get it. Say that it happened, or leave the answer out. {NOTHING_CHANGED}"
        )
    if not given.wanted and parts:
        raise UsageError(
            f"you give {parts}, and not that retries get it as the answer: they would be told that the answer is gone. "
            f"Say so (--answer FILE, or the box “Retries get this answer”), or leave it out. {NOTHING_CHANGED}"
        )
    if not given.wanted:
        return None
    status = DEFAULT_STATUS if given.status is None else given.status
    content_type = DEFAULT_CONTENT_TYPE if given.content_type is None else given.content_type
    bodyless = not given.body and status in BODYLESS_STATUSES
    headers = {} if bodyless or not content_type else {"content-type": content_type}
    return check_answer(Answer(status, given.body, headers))


def check_resolution(*, happened: bool, answer: Answer | None) -> None:
    """Raise UsageError for an answer of what did not happen."""
    if answer is not None:
        decide_answer(happened=happened, given=GivenAnswer(True, answer.body, answer.status))


def has_sealed(records: Iterable[Record]) -> bool:
    """Whether one of these records shows that their application has a key ring."""
    return any(is_sealed(each) for each in records)
