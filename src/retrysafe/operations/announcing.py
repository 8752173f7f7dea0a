"""Announcements: a commit names the step that may be sent after it, so that other code knows of that step (rule 16).

A foreign step that may be repeated leaves no trace of its own: the commit before it is its intent. Where calls are
numbered by place (journal.BY_PLACE), code that puts another step at that place would send the call under another key.
So that commit names the step that may follow:

- If the commit is made for a foreign step, the step is known.
- If the commit ends a local step, or is the claim itself, the step is predicted: it is the step that followed in every
  run of this process so far. A step that was not predicted is announced by one more commit before it is sent. That
  happens in the first run of a process, and where a body does not always take the same path.

Other code that finds an announcement either reaches that step or refuses the run (open_steps.py): at that place, or, if
calls are numbered by step, at any later one. The release before this one does not know announcements. It drops them
when it writes the journal, and does not read them from a run's number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from retrysafe.operations.journal import UNNAMED
from retrysafe.operations.steps import Step

START_PATH = 0
"""The path of a run that has called no step yet."""

MAX_PATHS = 10_000
"""Paths that are remembered for an operation. On later paths nothing is predicted, which costs a commit for each."""

HEAD_BYTES, MARK_BYTES, NAME_BYTES = 11, 3, 2
"""The parts of a run's number: random bytes (88 bits), a mark that says how the first step is announced, and a digest
of the announced step."""
NAME_MARK, SERVICE_MARK = "", "\0service"
"""What the mark is a digest of. It says what the digest of the step covers: its name and service, which a foreign step
has; or its name alone, for a local step."""


class StepPredictor:
    """Remembers which step followed which path in the runs of this process."""

    def __init__(self) -> None:
        self._after: dict[int, str] = {}

    def learn(self, path: int, step: str) -> None:
        """`step` was called after `path`. If another step followed it before, nothing is predicted there any more."""
        seen = self._after.setdefault(path, step) if len(self._after) < MAX_PATHS else self._after.get(path, step)
        if seen != step:
            self._after[path] = ""

    def predict(self, path: int) -> str:
        """The step that always followed this path. Empty if none did, or if it varied."""
        return self._after.get(path, "")


def extend_path(path: int, step: str) -> int:
    """The path with one more call. It is a hash, and only compared within the process that made it."""
    return hash((path, step))


def leaves_no_trace(step: Step, tx_kind: str) -> bool:
    """True if the step can have happened although the journal in the store does not say so."""
    return step.repeatable if step.kind == "foreign" else tx_kind == "elsewhere"


# A new run has no journal, only its number. The last bytes of the number can be read by code that knows the step.


def announce_in(run: bytes, step: str, service: str | None) -> bytes:
    """A run's number that announces its first step and the service of that step. `service` is None for a local step."""
    head = run[:HEAD_BYTES]
    if service is None:
        return head + _digest(head, NAME_MARK)[:MARK_BYTES] + _digest(head, step)[:NAME_BYTES]
    return head + _digest(head, SERVICE_MARK)[:MARK_BYTES] + _digest(head, f"{step}\0{service}")[:NAME_BYTES]


def read_announcement(run: bytes, services: Mapping[str, str]) -> tuple[str, bool]:
    """The first step that a run's number announces (empty if none), and whether its service is announced, too.
    `services` are the steps that this code has, with the service of each. An announced step that is not among them, or
    that has another service, is UNNAMED."""
    head, mark, name = run[:HEAD_BYTES], run[HEAD_BYTES : HEAD_BYTES + MARK_BYTES], run[HEAD_BYTES + MARK_BYTES :]
    if mark == _digest(head, SERVICE_MARK)[:MARK_BYTES]:
        matches = (
            step for step, service in services.items() if _digest(head, f"{step}\0{service}")[:NAME_BYTES] == name
        )
        return next(matches, UNNAMED), True
    if mark == _digest(head, NAME_MARK)[:MARK_BYTES]:
        return next((step for step in services if _digest(head, step)[:NAME_BYTES] == name), UNNAMED), False
    return "", False


class FirstStep(NamedTuple):
    """The first step as this code reads it from a run's number: its name (UNNAMED if this code does not have it, empty
    if none is announced), and its service by its name. It is not written down: in other code another step can have the
    same digest."""

    name: str
    services: Mapping[str, str | None]


def read_first_step(run: bytes, steps: Mapping[str, Step]) -> FirstStep:
    """Only a foreign step is announced with a service. Code that declares it as a local one refuses, and the other way
    round."""
    name, has_service = read_announcement(run, {step.name: step.service for step in steps.values()})
    return FirstStep(name, {name: steps[name].service if has_service else None} if name in steps else {})


def _digest(head: bytes, text: str) -> bytes:
    return hashlib.sha256(b"first step\0" + head + text.encode()).digest()
