"""What an operation has done so far: its progress, as one value that is replaced with each commit.

Entries stand in the order the steps began. An entry's `state` says what is known of it:

    begun     it may have happened (an intent that was written before the call, or a call that failed)
    done      it happened, and this is its result
    failed    it was given up, and the body went on without it; a foreign one may have happened all the same
    undoing   its undo may have happened
    undone    it was undone
    kept      the operation was undone, and this step has no undo: it stays as it is
    stuck     its undo failed for good: a person must look

The journal is pure data: `encode` and `decode` are all the I/O it knows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from retrysafe.core.records import Answer
from retrysafe.operations import blocks
from retrysafe.operations.blocks import Blocks

EntryState = Literal["begun", "done", "failed", "undoing", "undone", "kept", "stuck"]
TO_UNDO: frozenset[EntryState] = frozenset({"begun", "done", "failed", "undoing", "stuck"})

BY_PLACE, BY_CALL = 1, 2
"""What a step's key is numbered by, and with it the version of the journal: the place of the call among all calls, or
its number among the calls of that step. A journal keeps the rule it was begun with. Code that does not know a rule
refuses the journal: another key would be another charge."""


@dataclass(frozen=True, slots=True)
class StepEntry:
    """One call of one step. `args` and `result` are typed.dump texts."""

    step: str
    state: EntryState
    args: str = ""
    result: str = ""
    at: int = 0
    """The earliest moment at which the other system can have seen this step's key."""
    error: str = ""
    undo_at: int = 0
    """The same for the key of its undo."""
    given: str = ""
    """A digest of what it was called with (essence.py); empty where that is not known."""
    _text: str = field(default="", compare=False, repr=False)

    def encode(self) -> str:
        """Its form in the journal. Made once: with every commit all entries are written."""
        if not self._text:
            parts = [self.step, self.state, self.args, self.result, self.at, self.error, self.undo_at]
            object.__setattr__(self, "_text", json.dumps(parts, separators=(",", ":")))
        return self._text

    def replace(self, **changes: Any) -> StepEntry:
        """The same entry, changed."""
        return replace(self, _text="", **changes)


@dataclass(frozen=True, slots=True)
class OperationJournal:
    """All entries, and the answer that waits at the end of the undoing if there is any."""

    entries: tuple[StepEntry, ...] = ()
    undoing: Answer | None = None
    cause: str = ""
    """Why it was undone or given up, in the words of the error: here, where a key ring covers it."""
    at: int = 0
    """When the last of the entries was committed: the step after it cannot have begun before."""
    rule: int = BY_PLACE
    left: int = 0
    """The attempt that stopped here by its own will, with all it had sent in the entries. 0: none is known to have."""
    counted: int = 0
    """The attempt up to which `failed` counts. Every attempt after it has died without a word."""
    failed: int = 0
    failed_at: int = 0
    """When the last failure was counted."""
    announced: str = ""
    """The one step that may have happened after the entries without a trace (announcing.py). Empty: none, or nobody
    says."""
    unmet: tuple[str, ...] = ()
    """Steps that attempts before may have sent, and no later one has come to (open_steps.py). Only by BY_CALL."""
    _blocks: Blocks = field(default=(), init=False, compare=False, repr=False)
    """Kept words of the entries (blocks.py). `replace` does not take them over; `but` and `with_entry` do."""

    def but(self, **changes: Any) -> OperationJournal:
        """The same journal with the same entries, and something else changed."""
        assert "entries" not in changes, "entries are changed by with_entry, or by replace"
        return replace(self, **changes)._knowing(self._blocks)

    def _knowing(self, kept: Blocks) -> OperationJournal:
        object.__setattr__(self, "_blocks", kept)
        return self

    def fill_blocks(self) -> Blocks:
        """The words of all full blocks, made where they are missing."""
        self._knowing(blocks.fill(self._blocks, self.entries))
        return self._blocks

    def is_fully_recorded(self, attempt: int) -> bool:
        """Whether this attempt, and with it every one before, left nothing untold."""
        return 0 < attempt == self.left

    def count_failures(self, attempts: int) -> int:
        """How many of so many attempts failed: those that said so, and those that died."""
        return self.failed + max(0, attempts - self.counted)

    def call_number(self, step: str, place: int) -> int:
        """What the keys, receipts and jobs of a call are told apart by."""
        if self.rule == BY_PLACE:
            return place
        return blocks.count_calls(self.fill_blocks(), self.entries, step, place)

    def with_entry(self, place: int, entry: StepEntry) -> OperationJournal:
        """The entry at its place: replaced if it is there, appended if it is the next."""
        assert place <= len(self.entries), "a step's place is the number of steps before it"
        announced = self.announced if place < len(self.entries) else ""
        known = self.entries if place == len(self.entries) else self.entries[:place]
        entries = (*known, entry, *self.entries[place + 1 :])
        return replace(self, entries=entries, announced=announced)._knowing(blocks.forget(self._blocks, place))

    def encode(self) -> bytes:
        """What older code does not know it leaves out when it writes the journal anew, and is nothing it needs."""
        undoing = None
        if self.undoing is not None:
            answer = self.undoing
            undoing = [answer.status, answer.body.decode("latin-1"), list(answer.headers)]
        whole: dict[str, Any] = {"undoing": undoing, "cause": self.cause, "at": self.at}
        whole |= {name: getattr(self, name) for name in _COUNTS if getattr(self, name)}
        if self.announced:
            whole["announced"] = self.announced
        if self.unmet:
            whole["unmet"] = self.unmet
        entries = blocks.write(self.fill_blocks(), self.entries)
        rest = json.dumps(whole, separators=(",", ":"))[1:-1]
        given = f',"given":[{entries.givens}]' if entries.given else ""
        return f'{{"v":{self.rule},"entries":[{entries.texts}],{rest}{given}}}'.encode()

    @classmethod
    def decode(cls, data: bytes) -> OperationJournal:
        """Raises ValueError for anything this version cannot have written."""
        if not data:
            return cls()
        whole = json.loads(data)
        if not isinstance(whole, dict) or whole.get("v") not in (BY_PLACE, BY_CALL):
            found = whole.get("v") if isinstance(whole, dict) else whole
            raise ValueError(f"the journal is of version {found!r}, this code reads {BY_PLACE} and {BY_CALL}")
        undoing = None
        if whole["undoing"] is not None:
            status, body, headers = whole["undoing"]
            undoing = Answer(status, body.encode("latin-1"), [(name, value) for name, value in headers])
        given = whole.get("given", [])
        given += [""] * (len(whole["entries"]) - len(given))
        entries = tuple(StepEntry(*(*each, digest)) for each, digest in zip(whole["entries"], given, strict=True))
        counts = {name: whole.get(name, 0) for name in _COUNTS}
        announced, unmet = whole.get("announced", ""), tuple(whole.get("unmet", ()))
        return cls(
            entries, undoing, whole["cause"], whole["at"], whole["v"], **counts, announced=announced, unmet=unmet
        )


_COUNTS = ("left", "counted", "failed", "failed_at")


def format_recovery_point(journal: OperationJournal) -> str:
    """The recovery point: the last thing that is known, in words for people. Never empty: it is unfinished work."""
    if journal.undoing is not None:
        left = blocks.count_states(journal.fill_blocks(), journal.entries, TO_UNDO)
        return f"undoing: {left} left"
    return journal.entries[-1].step if journal.entries else "started"


def build_ledger(journal: OperationJournal) -> list[dict[str, Any]]:
    """The journal for people and tools: one line per step."""
    return [
        {"step": e.step, "state": e.state, "result": e.result, "error": e.error, "at": e.at, "undo_at": e.undo_at}
        for e in journal.entries
    ]


def list_sent(journal: OperationJournal) -> list[str]:
    """The steps that may have been sent, and that nobody knows the end of."""
    begun = [entry.step for entry in journal.entries if entry.state == "begun"]
    return begun[-1:] or [*journal.unmet, *({journal.announced} - {"", *journal.unmet})]


def describe_next_step(journal: OperationJournal, point: str) -> str:
    """What comes next, in words for the person who decides. Empty where nothing does."""
    if journal.undoing is not None:
        left = [entry.step for entry in reversed(journal.entries) if entry.state in TO_UNDO]
        return f"undo of {left[0]} (may have happened)" if left else ""
    may_be_out = list_sent(journal)
    if may_be_out:
        return f"{', '.join(may_be_out)} (may have been sent)"
    done = f"after {journal.entries[-1].step}" if journal.entries else "at the start"
    return f"the step {done} (not written down; it may have been sent)" if point or not journal.entries else ""
