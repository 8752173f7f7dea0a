"""The journal: the progress of an operation, as one immutable value that each commit replaces.

Entries stand in the order in which the steps began. The `state` of an entry says what is known of the call:

    begun     it may have happened (an intent that was written before the call, or a call that failed)
    done      it happened, and this is its result
    failed    it was given up, and the body continued without it; a foreign step may have happened all the same
    undoing   its undo may have happened
    undone    it was undone
    kept      the operation was undone, and this step has no undo: it stays as it is
    stuck     its undo failed for good: a person must look

The journal is pure data. `encode` and `decode` make the bytes that are stored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from retrysafe.core.records import Answer
from retrysafe.operations import blocks
from retrysafe.operations.blocks import Blocks
from retrysafe.operations.errors import StepFailed, StepOutcomeUnknown

_log = logging.getLogger("retrysafe")

LARGE_JOURNAL_BYTES = 128 * 1024
"""About a thousand small steps. A journal is written whole with every step (docs/howto/operations.md)."""

EntryState = Literal["begun", "done", "failed", "undoing", "undone", "kept", "stuck"]
TO_UNDO: frozenset[EntryState] = frozenset({"begun", "done", "failed", "undoing", "stuck"})

BY_PLACE, BY_CALL = 1, 2
"""How the key of a call is numbered, and with it the version of the journal: by the place of the call among all calls,
or by its number among the calls of its step. A journal keeps the rule that it was begun with. Code that does not know a
rule refuses the journal: another key would be another charge."""


UNNAMED = "a step that this code does not have"
"""The name, in `announced` and `unmet`, of the first step that only the run's number announces (announcing.py). Each
code reads the number for itself."""


@dataclass(frozen=True, slots=True)
class StepEntry:
    """One call of one step. `args` and `result` are texts made by typed.dump."""

    step: str
    state: EntryState
    args: str = ""
    result: str = ""
    at: int = 0
    """The earliest moment at which the other system can have seen the key of this call."""
    error: str = ""
    undo_at: int = 0
    """The same for the key of its undo."""
    given: str = ""
    """A digest of the call's arguments (arguments_digest.py). Empty if it is not known."""
    _text: str = field(default="", compare=False, repr=False)

    def encode(self) -> str:
        """The entry as text in the journal. Cached, because every commit writes all entries."""
        if not self._text:
            parts = [self.step, self.state, self.args, self.result, self.at, self.error, self.undo_at]
            object.__setattr__(self, "_text", json.dumps(parts, separators=(",", ":")))
        return self._text

    def replace(self, **changes: Any) -> StepEntry:
        """A copy with changes."""
        return replace(self, _text="", **changes)


@dataclass(frozen=True, slots=True)
class OperationJournal:
    """All entries, and the answer that is given after the undo, if the operation is being undone."""

    entries: tuple[StepEntry, ...] = ()
    undoing: Answer | None = None
    cause: str = ""
    """Why the operation was undone or given up, as the error's text. It is kept here because a key ring seals it."""
    at: int = 0
    """When the last of the entries was committed. The step after it cannot have begun before."""
    rule: int = BY_PLACE
    left: int = 0
    """The last attempt that ended in order, with everything that it sent in the entries. 0: no attempt is known to
    have."""
    counted: int = 0
    """The attempt up to which `failed` counts. Every later attempt ended without writing why: its process died."""
    failed: int = 0
    failed_at: int = 0
    """When the last failure was counted."""
    announced: str = ""
    """The one step that may have happened after the entries without a trace (announcing.py). Empty: there is none, or
    it was not announced."""
    unmet: tuple[str, ...] = ()
    """Steps that earlier attempts may have sent and no later attempt has reached (open_steps.py). Only with BY_CALL."""
    services: Mapping[str, str | None] = field(default_factory=dict)
    """The service of each foreign step that may have been sent, and None for each local step that may have been
    committed (open_steps.py): of the announced one, the unmet ones, and a begun one. While undoing: of all steps that
    have an undo. Older releases do not write it."""
    _blocks: Blocks = field(default=(), init=False, compare=False, repr=False)
    """The cached text of the entries (blocks.py). `dataclasses.replace` drops it; our `replace` and `with_entry` keep
    it."""

    def replace(self, **changes: Any) -> OperationJournal:
        """A copy with the same entries and other fields changed."""
        assert "entries" not in changes, "entries are changed by with_entry, or by dataclasses.replace"
        changed = replace(self, **changes)
        object.__setattr__(changed, "_blocks", self._blocks)
        return changed

    def fill_blocks(self) -> Blocks:
        """The text of all full blocks. Missing ones are made."""
        object.__setattr__(self, "_blocks", blocks.fill_blocks(self._blocks, self.entries))
        return self._blocks

    def is_fully_recorded(self, attempt: int) -> bool:
        """True if everything that this attempt, and every attempt before it, has sent is in the journal."""
        return 0 < attempt == self.left

    def count_failures(self, attempts: int) -> int:
        """How many of so many attempts failed: those that wrote it down, and those whose process died."""
        return self.failed + max(0, attempts - self.counted)

    def call_number(self, step: str, place: int) -> int:
        """The number that tells the keys, receipts and jobs of this call apart from those of other calls."""
        if self.rule == BY_PLACE:
            return place
        return blocks.count_calls(self.fill_blocks(), self.entries, step, place)

    def with_entry(self, place: int, entry: StepEntry) -> OperationJournal:
        """A copy with the entry at its place: replaced if there is one, appended if it is the next."""
        assert place <= len(self.entries), "a step's place is the number of steps before it"
        announced = self.announced if place < len(self.entries) else ""
        known = self.entries if place == len(self.entries) else self.entries[:place]
        entries = (*known, entry, *self.entries[place + 1 :])
        changed = replace(self, entries=entries, announced=announced)
        object.__setattr__(changed, "_blocks", blocks.drop_block(self._blocks, place))
        return changed

    def encode(self) -> bytes:
        """The stored form. Older code drops the fields that it does not know when it writes the journal again, so no
        field that was added later may be needed to continue a run."""
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
        sent = {step: service for step, service in self.services.items() if service is not None}
        if sent:
            whole["services"] = sent
        if len(sent) < len(self.services):
            whole["local"] = [step for step, service in self.services.items() if service is None]
        entries = blocks.join_blocks(self.fill_blocks(), self.entries)
        rest = json.dumps(whole, separators=(",", ":"))[1:-1]
        given = f',"given":[{entries.givens}]' if entries.has_given else ""
        return f'{{"v":{self.rule},"entries":[{entries.texts}],{rest}{given}}}'.encode()

    @classmethod
    def decode(cls, data: bytes) -> OperationJournal:
        """Read the stored form. Raises ValueError for anything that no known version can have written."""
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
        texts = (entries, undoing, whole["cause"], whole["at"], whole["v"])
        services = {**whole.get("services", {}), **dict.fromkeys(whole.get("local", ()))}
        return cls(*texts, **counts, announced=announced, unmet=unmet, services=services)


_COUNTS = ("left", "counted", "failed", "failed_at")


def format_recovery_point(journal: OperationJournal) -> str:
    """The recovery point: the last finished step, as text for people. Never empty, because the work is unfinished."""
    if journal.undoing is not None:
        left = blocks.count_states(journal.fill_blocks(), journal.entries, TO_UNDO)
        return f"undoing: {left} left"
    return journal.entries[-1].step if journal.entries else "started"


def build_ledger(journal: OperationJournal) -> list[dict[str, Any]]:
    """The journal for people and tools: one item per step."""
    return [
        {"step": e.step, "state": e.state, "result": e.result, "error": e.error, "at": e.at, "undo_at": e.undo_at}
        for e in journal.entries
    ]


def list_sent(journal: OperationJournal) -> list[str]:
    """The steps that may have been sent and whose outcome is unknown."""
    begun = [entry.step for entry in journal.entries if entry.state == "begun"]
    return begun[-1:] or [*journal.unmet, *({journal.announced} - {"", *journal.unmet})]


def was_unknown(known: StepEntry) -> bool:
    """True if an earlier attempt ended because nobody knew what became of this call. That made the record uncertain.
    Only a person who says that the call did not happen makes it claimable again."""
    return known.state == "begun" and known.error.startswith(StepOutcomeUnknown.__name__)


def was_given_up(known: StepEntry) -> bool:
    """True if the calls of this step failed until its tries were used up. Only a step that may be repeated writes that,
    so its call may be sent again with its key, as long as the key lives."""
    return known.state == "begun" and known.error.startswith(StepFailed.__name__)


def describe_next_step(journal: OperationJournal, point: str) -> str:
    """The next step, as text for the person who decides. Empty if there is none."""
    if journal.undoing is not None:
        left = [entry.step for entry in reversed(journal.entries) if entry.state in TO_UNDO]
        return f"undo of {left[0]} (may have happened)" if left else ""
    may_be_out = ["the first step" if name == UNNAMED else name for name in list_sent(journal)]
    if may_be_out:
        return f"{', '.join(may_be_out)} (may have been sent)"
    done = f"after {journal.entries[-1].step}" if journal.entries else "at the start"
    return f"the step {done} (not written down; it may have been sent)" if point or not journal.entries else ""


def warn_large_journal(target: str, record_id: bytes, steps: int, progress: bytes) -> None:
    """Log that a journal has grown long, while it still fits into the store."""
    _log.warning(
        "%s %s: the journal has %d steps and %d bytes, and is written whole with every step; split it into several "
        "operations, or let its steps return less",
        *(target, record_id.hex()[:16], steps, len(progress)),
    )
