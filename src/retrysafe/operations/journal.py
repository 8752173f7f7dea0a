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
from dataclasses import dataclass, replace
from typing import Any, Literal

from retrysafe.core.records import Answer

EntryState = Literal["begun", "done", "failed", "undoing", "undone", "kept", "stuck"]
TO_UNDO: frozenset[EntryState] = frozenset({"begun", "done", "failed", "undoing", "stuck"})
VERSION = 1


@dataclass(frozen=True, slots=True)
class Entry:
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


@dataclass(frozen=True, slots=True)
class Journal:
    """All entries, and the answer that waits at the end of the undoing if there is any."""

    entries: tuple[Entry, ...] = ()
    undoing: Answer | None = None
    cause: str = ""
    """Why it was undone or given up, in the words of the error: here, where a key ring covers it."""
    at: int = 0
    """When the last of the entries was committed: the step after it cannot have begun before."""
    left: int = 0
    """The attempt that stopped here by its own will, with all it had sent in the entries. 0: none is known to have."""

    def all_told(self, attempt: int) -> bool:
        """Whether this attempt, and with it every one before, left nothing untold."""
        return 0 < attempt == self.left

    def with_entry(self, place: int, entry: Entry) -> Journal:
        """The entry at its place: replaced if it is there, appended if it is the next."""
        assert place <= len(self.entries), "a step's place is the number of steps before it"
        return replace(self, entries=(*self.entries[:place], entry, *self.entries[place + 1 :]))

    def encode(self) -> bytes:
        undoing = None
        if self.undoing is not None:
            answer = self.undoing
            undoing = [answer.status, answer.body.decode("latin-1"), list(answer.headers)]
        entries = [[e.step, e.state, e.args, e.result, e.at, e.error, e.undo_at] for e in self.entries]
        whole = {"v": VERSION, "entries": entries, "undoing": undoing, "cause": self.cause, "at": self.at}
        if self.left:
            whole["left"] = self.left
        return json.dumps(whole, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Journal:
        """Raises ValueError for anything this version cannot have written."""
        if not data:
            return cls()
        whole = json.loads(data)
        if not isinstance(whole, dict) or whole.get("v") != VERSION:
            found = whole.get("v") if isinstance(whole, dict) else whole
            raise ValueError(f"the journal is of version {found!r}, this code reads {VERSION}")
        undoing = None
        if whole["undoing"] is not None:
            status, body, headers = whole["undoing"]
            undoing = Answer(status, body.encode("latin-1"), [(name, value) for name, value in headers])
        entries = tuple(Entry(*each) for each in whole["entries"])
        return cls(entries, undoing, whole["cause"], whole["at"], whole.get("left", 0))


def point_of(journal: Journal) -> str:
    """The recovery point: the last thing that is known, in words for people. Never empty: it is unfinished work."""
    if journal.undoing is not None:
        left = sum(entry.state in TO_UNDO for entry in journal.entries)
        return f"undoing: {left} left"
    return journal.entries[-1].step if journal.entries else "started"


def ledger(journal: Journal) -> list[dict[str, Any]]:
    """The journal for people and tools: one line per step."""
    return [
        {"step": e.step, "state": e.state, "result": e.result, "error": e.error, "at": e.at, "undo_at": e.undo_at}
        for e in journal.entries
    ]
