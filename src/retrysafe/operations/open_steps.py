"""Open steps: those that an earlier attempt may have sent without a trace, until this one has come to them (rule 16).

Where calls are numbered by their place, the step comes at its place, or nothing does. Where they are numbered by the
step's own calls, other steps may come before it: its key stays the same. Then it is kept in the journal (`unmet`) over
their commits, and more than one can be open when the code between dies, too. In either case the body does not end
without it: an answer, or an undo, that leaves it out would be a guess.
"""

from __future__ import annotations

from collections.abc import Collection

from retrysafe.operations.journal import BY_PLACE, OperationJournal


class OpenSteps:
    """What was open when an attempt began, and where it came to each of them."""

    def __init__(self, names: tuple[str, ...], adopted: int, rule: int) -> None:
        self.names = names
        self._adopted = adopted
        self._by_place = rule == BY_PLACE
        self._met: dict[str, int] = {}

    def left_in(self, journal: OperationJournal) -> tuple[str, ...]:
        """Those of which this journal has no entry: a step that was come to, and not begun, is still open."""
        entries = len(journal.entries)
        return tuple(name for name in self.names if self._met.get(name, entries) >= entries)

    def meet(self, step: str, place: int, journal: OperationJournal, steps: Collection[str]) -> str:
        """The body comes to a step. Why it may not, or nothing."""
        left = self.left_in(journal)
        if not left:
            return ""
        unknown = [name for name in left if name not in steps]
        if unknown and not self._by_place:
            return self.explain(unknown[0], "this code does not have it")
        if place < self._adopted:
            return ""
        if step in left:
            self._met.setdefault(step, place)
            return ""
        return self.explain(left[0], f"this code comes to {step!r} there") if self._by_place else ""

    def is_met_at(self, step: str, place: int) -> bool:
        return self._met.get(step) == place

    def explain(self, name: str, now: str) -> str:
        number = f" as its step number {self._adopted + 1}" if self._by_place else ""
        return (
            f"{name!r} may have been sent{number}, and {now}; a person who knows that it was not sent can say so: "
            "retrysafe operations --resume ID --because TEXT"
        )


def find_open(journal: OperationJournal, untold: bool) -> tuple[str, ...]:
    """What may have been sent: what was never met, and what an attempt announced that died."""
    last = journal.announced if untold and journal.announced not in journal.unmet else ""
    return (*journal.unmet, last) if last else journal.unmet
