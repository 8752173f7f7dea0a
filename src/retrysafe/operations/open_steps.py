"""Open steps: an earlier attempt may have sent them without a trace, and this one has not reached them yet (rule 16).

Calls are numbered by place or by step (journal.py). Numbered by place, the open step must be called at its place. Any
other step there is refused. Numbered by step, the open step keeps its key wherever it is called, so local steps may
come first; the journal then carries the open step (`unmet`) over their commits. Another foreign step is refused: it may
be a new name for the open one, and would be a second charge. In both cases the body may not end before it has reached
the open step. An answer or an undo that leaves the step out would be a guess.

A step that only the run's number announces has no name in the journal (UNNAMED). Each code reads the number for itself:
two steps of two versions of the code can have the same digest there, and a wrong name in the journal would refuse the
code that began the run.

The service of a foreign step is part of its key. So the journal also carries the service that each open step may have
been sent for (`services`), and code that declares another one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from retrysafe.operations.journal import BY_PLACE, TO_UNDO, UNNAMED, OperationJournal, StepEntry
from retrysafe.operations.steps import Step

RESUME_COMMAND = "retrysafe operations resume MODULE:SAFE ID --was-not-sent --because TEXT"
REMEDY = f"a person who knows that it was not sent can say so: {RESUME_COMMAND}"


class SentServices:
    """The service that each step may have been sent for, as earlier attempts wrote it down and this one changes it. A
    local step has None: it may have been committed in a database that is not the store's."""

    def __init__(
        self, stored: Mapping[str, str | None], steps: Mapping[str, Step], not_sent: bool, commits_elsewhere: bool
    ) -> None:
        self._services = dict(stored)
        self._steps = steps
        self._commits_elsewhere = commits_elsewhere
        """Local steps are committed in a database that is not the store's."""
        self._not_sent = not_sent
        """A person says that the steps did not happen: another service or kind is accepted."""

    def compare(self, step: Step, what: str = "step") -> str:
        """Why this step must not run as this code declares it. Empty if it may. A step of which nothing was written
        down (by an older release) may run."""
        if self._not_sent or step.name not in self._services:
            return ""
        before, now = self._services[step.name], get_service(step)
        if before == now:
            return ""
        which = f"{what} {step.name!r}"
        if now is None:
            return f"{which} may have been sent, and this code declares it as a local step; {REMEDY}"
        if before is None:
            return (
                f"{which} may have been committed as a local step, and this code declares it as a foreign one; a "
                f"person who knows that it was not committed can say so: {RESUME_COMMAND}"
            )
        return (
            f"{which} may have been sent for the service {before!r}, and this code declares {now!r}: its key would be "
            f"another one; {REMEDY}"
        )

    def may_be_undone(self, entry: StepEntry) -> bool:
        """True if the undo of this entry may have happened. A local undo that is committed elsewhere writes nothing
        to the store before."""
        if entry.state in ("undoing", "stuck"):
            return True
        return entry.state in TO_UNDO and self._services.get(entry.step, "") is None

    def record_sending(self, step: Step) -> None:
        """This attempt is about to run the step."""
        self._services[step.name] = get_service(step)

    def select(self, journal: OperationJournal, left: tuple[str, ...]) -> dict[str, str | None]:
        """The services to store with this journal: of steps that may have happened, or may after the commit. `left` are
        the open steps, as they are stored."""
        if journal.undoing is not None:  # `check_undo_services` has compared what earlier attempts may have sent
            undos = [step for step in self._steps.values() if step.undo]
            return {step.name: get_service(step) for step in undos if step.kind == "foreign" or self._commits_elsewhere}
        begun = [entry.step for entry in journal.entries[-1:] if entry.state == "begun"]
        selected = {name: self._services[name] for name in (*left, *begun) if name in self._services}
        announced = self._steps.get(journal.announced)
        if announced is not None and announced.name not in left:
            selected[announced.name] = get_service(announced)
        return selected


def get_service(step: Step) -> str | None:
    """The service of a foreign step. None for a local one."""
    return step.service if step.kind == "foreign" else None


class OpenSteps:
    """The steps that were open when an attempt began, and the place at which it reached each of them. `first` is the
    step that this code reads from the run's number."""

    def __init__(self, stored: tuple[str, ...], adopted: int, rule: int, first: str = UNNAMED) -> None:
        self._names = {each: first if each == UNNAMED else each for each in stored}
        """The name of each open step in this code, by its name in the journal."""
        self._adopted = adopted
        self._by_place = rule == BY_PLACE
        self._met: dict[str, int] = {}

    def list_open(self, journal: OperationJournal) -> tuple[str, ...]:
        """The steps that have no entry in this journal. A step that was reached, but not begun, is still open."""
        return tuple(dict.fromkeys(self._names[each] for each in self.list_stored(journal)))

    def list_stored(self, journal: OperationJournal) -> tuple[str, ...]:
        """The same steps as they are stored: one that is only known from the run's number is UNNAMED."""
        if not self._names:
            return ()
        entries = len(journal.entries)
        return tuple(each for each, name in self._names.items() if self._met.get(name, entries) >= entries)

    def check_call(
        self, step: Step, place: int, journal: OperationJournal, steps: Mapping[str, Step], services: SentServices
    ) -> str:
        """The body calls a step. Why it may not; empty if it may."""
        left = self.list_open(journal)
        if not left:
            return ""
        unknown = [name for name in left if name not in steps]
        if unknown and not self._by_place:
            return self.explain(unknown[0], "this code does not have it")
        if place < self._adopted:
            return ""
        if step.name in left:
            refused = services.compare(step)
            if not refused:
                self._met.setdefault(step.name, place)
            return refused
        if self._by_place:
            return self.explain(left[0], f"this code calls {step.name!r} there")
        return self.explain(left[0], f"this code calls {step.name!r} before it") if step.kind == "foreign" else ""

    def is_met_at(self, step: str, place: int) -> bool:
        return self._met.get(step) == place

    def explain(self, name: str, now: str) -> str:
        """The text of a refusal. `now` says what this code does instead."""
        number = f" as its step number {self._adopted + 1}" if self._by_place else ""
        which = (
            "a step that this code does not have, or declares for another service," if name == UNNAMED else repr(name)
        )
        return f"{which} may have been sent{number}, and {now}; {REMEDY}"


def find_open(journal: OperationJournal, may_lack_entry: bool) -> tuple[str, ...]:
    """The steps that may have been sent: those that no later attempt has reached, and the one that was announced by an
    attempt that died (`may_lack_entry`). While the last entry is begun, nothing can have been sent after it: such an
    announcement is of that entry's own step, which was about to be sent again."""
    begun = bool(journal.entries) and journal.entries[-1].state == "begun"
    last = journal.announced if may_lack_entry and not begun and journal.announced not in journal.unmet else ""
    return (*journal.unmet, last) if last else journal.unmet
