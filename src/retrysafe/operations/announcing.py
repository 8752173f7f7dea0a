"""Which step may have happened without a trace is announced, so that other code knows of it (rule 16).

The commit that ends a step is the intent of the next one: a call that is begun after it leaves no trace of its own.
Where calls are numbered by their place (journal.BY_PLACE), code that puts another step at that place would send the
call under another key. So that commit names the step it is the intent of:

- where the commit is made for a foreign step, that step is known;
- where it ends a local step, or is the claim itself, the step is foreseen: the one that followed in every run of this
  process so far. A step that was not foreseen is announced by a commit of its own before it is sent: so it is in the
  first run of a process, and where a body does not always go the same way.

Other code that finds an announcement comes to that step, or refuses (open_steps.py): at that place, or, where each
step's own calls are numbered, at any later one. Processes of the release before do not know it: they leave it out when
they write the journal, and do not see it in a run's number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from retrysafe.operations.steps import Step

START = 0
"""The path of a run that has called nothing."""

MANY = 10_000
"""Paths that are remembered for an operation. Later ones are not foreseen, which costs a commit each."""

UNNAMED = "a step that this code does not have"

HEAD, MARK, NAME = 11, 3, 2
"""Bytes of a run's number: random ones (88 bits), those that say that the first step is announced, and its name's."""


class Habits:
    """Which step followed which, in the runs of one process."""

    def __init__(self) -> None:
        self._after: dict[int, str] = {}

    def learn(self, path: int, step: str) -> None:
        """`step` was called after `path`. Where it was another one before, nothing is foreseen from then on."""
        seen = self._after.setdefault(path, step) if len(self._after) < MANY else self._after.get(path, step)
        if seen != step:
            self._after[path] = ""

    def foresee(self, path: int) -> str:
        return self._after.get(path, "")


def further(path: int, step: str) -> int:
    """The path with one more call. Only ever compared in the process that made it."""
    return hash((path, step))


def leaves_no_trace(step: Step, ground: str) -> bool:
    """Whether it can have happened although the journal in the store does not say so."""
    return step.repeatable if step.kind == "foreign" else ground == "elsewhere"


# At birth there is no journal yet, only the run's number. Its last bytes can be read by who knows the step's name.


def announce_in(run: bytes, step: str) -> bytes:
    """A run's number that announces its first step."""
    head = run[:HEAD]
    return head + _digest(head, "")[:MARK] + _digest(head, step)[:NAME]


def announced_in(run: bytes, steps: Iterable[str]) -> str:
    """The first step that a run's number announces; empty if it announces none."""
    head, mark, name = run[:HEAD], run[HEAD : HEAD + MARK], run[HEAD + MARK :]
    if mark != _digest(head, "")[:MARK]:
        return ""
    return next((step for step in steps if _digest(head, step)[:NAME] == name), UNNAMED)


def _digest(head: bytes, step: str) -> bytes:
    return hashlib.sha256(b"first step\0" + head + step.encode()).digest()
