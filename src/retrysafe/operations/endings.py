"""How an operation's body ends otherwise than by returning an Answer."""

from __future__ import annotations

from typing import Any

from retrysafe.core.records import Answer


class OperationEnding(Exception):
    """Raised by the user, inside a step or the body."""

    def __init__(self, status: int, body: Any = b"", **headers: str) -> None:
        self.answer = Answer(status, body, headers)
        super().__init__(f"{type(self).__name__}({status})")


class Stop(OperationEnding):
    """This is the answer, and what was done stays done: a declined card is an answer."""


class Undo(OperationEnding):
    """Undo every step that began, in reverse, and then give this answer."""
