"""Bulk actions: on the records that match a filter now, up to a cap, each fenced. What arrives later is not touched.
What changed meanwhile is skipped and named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import format_time
from retrysafe.engine.audit import AUDIT_KIND, MAX_NAMED_RECORDS
from retrysafe.engine.why import is_run
from retrysafe.errors import UsageError
from retrysafe.operators.key_actions import Decision, KeyAction
from retrysafe.operators.record_search import StateSearch
from retrysafe.operators.session import Reason, Session

PAGE_ROWS = 200
CHANGED = "it changed underneath"


class BulkFilter(NamedTuple):
    """Which records a bulk action is for, beside the state that the action looks for. None means: any."""

    scope: str | None = None
    target: str | None = None
    kind: str | None = None
    older_than: int = 0
    """Only attempts that began so many microseconds before the as-of time."""
    lapsed: bool = False
    """Only claims whose lease has lapsed: the store lists them without the others."""

    def matches(self, record: Record, state: State, as_of: int) -> bool:
        """Whether the attempt of this record had begun by then, and the record is one of these. Runs of operations are
        resumed or undone, not released."""
        wanted = ((self.scope, record.scope), (self.target, record.target), (self.kind, record.kind))
        return (
            record.kind != AUDIT_KIND
            and all(want is None or want == value for want, value in wanted)
            and record.started <= as_of - self.older_than
            and not (state is State.CLAIMED and is_run(record))
        )


class Chosen(NamedTuple):
    """A record, and the operation that changes exactly this attempt of it."""

    record: Record
    op: Any


class BulkSelection(NamedTuple):
    """What a bulk action would change, as of a time of the store."""

    as_of: int
    chosen: list[Chosen]
    refused: int
    """How many matched and must not be changed."""
    skipped: list[tuple[str, str]] = []  # noqa: RUF012  # never changed
    """Ids that were named and do not match any more, with the reason."""
    complete: bool = True
    """False if the search ended at its limit, or at the cap: more records may match."""


class RowResult(NamedTuple):
    record: Record
    done: bool


class BulkResult(NamedTuple):
    results: list[RowResult]
    audit: str
    """The id of the audit row."""

    @property
    def changed(self) -> int:
        return sum(each.done for each in self.results)

    @property
    def skipped(self) -> int:
        return len(self.results) - self.changed


class BulkAction:
    """One action on the records of one filter: choose, show, act."""

    def __init__(self, session: Session, action: KeyAction, wanted: BulkFilter) -> None:
        self._session, self._action, self._wanted = session, action, wanted

    def choose(self, cap: int, examine: int | None = None) -> BulkSelection:
        """The records that match now, at most `cap`, among the first `examine` records of the state."""
        if not 1 <= cap <= MAX_NAMED_RECORDS:
            raise UsageError(f"--cap {cap}: give 1 to {MAX_NAMED_RECORDS}")
        as_of = self._session.read_time()
        chosen: list[Chosen] = []
        refused = 0
        search = self._search_state(examine)
        for record in search:
            if self._wanted.matches(record, self._action.state, as_of):
                decision = self._action.decide(record, as_of)
                refused += decision.op is None
                chosen += [Chosen(record, decision.op)] if decision.op is not None else []
            if len(chosen) == cap:
                break
        return BulkSelection(as_of, chosen, refused, complete=len(chosen) < cap and search.complete)

    def _search_state(self, examine: int | None) -> StateSearch:
        wanted = self._wanted
        query = List(self._session.namespace, self._action.state, wanted.kind, wanted.scope, wanted.lapsed)
        return StateSearch(self._session.execute, query, PAGE_ROWS, examine)

    def choose_again(self, as_of: int, rows: Iterable[tuple[bytes, int]]) -> BulkSelection:
        """The rows (id and attempt) that an operator was shown and has confirmed. A row that is in another attempt, or
        does not match any more, is skipped."""
        now = self._session.read_time()
        chosen: list[Chosen] = []
        skipped: list[tuple[str, str]] = []
        for record_id, attempt in rows:
            record = self._session.execute(Lookup(record_id)).record
            if record is None or record.namespace != self._session.namespace:
                skipped.append((record_id.hex(), "it is gone"))
                continue
            why = self._find_change(record, as_of, attempt)
            decision = Decision(refusal=why) if why else self._action.decide(record, now)
            if decision.op is None:
                skipped.append((record_id.hex(), decision.refusal))
            else:
                chosen.append(Chosen(record, decision.op))
        return BulkSelection(as_of, chosen, 0, skipped)

    def _find_change(self, record: Record, as_of: int, attempt: int) -> str:
        if record.attempt != attempt:
            return f"{CHANGED}: attempt {record.attempt} began, and attempt {attempt} was shown"
        if not self._wanted.matches(record, self._action.state, as_of):
            return f"{CHANGED}: it does not match the filter any more"
        return ""

    def act(
        self,
        choice: BulkSelection,
        reason: Reason,
        details: dict[str, Any],
        report: Callable[[RowResult], None] = lambda result: None,
    ) -> BulkResult:
        """Change what was chosen, row by row, under one audit row that names all of them."""
        name = self._action.name
        ids = tuple(record.id.hex() for record, _ in choice.chosen)
        details = {**self._action.details, "as_of": format_time(choice.as_of), **details}
        results: list[RowResult] = []
        with self._session.act(reason.entry(name, ids, **details)) as audit:
            found = BulkResult(results, audit.id)
            try:
                for record, op in choice.chosen:
                    results.append(RowResult(record, bool(self._session.execute(op))))
                    report(results[-1])
                    if len(results) % PAGE_ROWS == 0:
                        audit.keep_alive()
            finally:  # an action that is interrupted says how far it came
                audit.result = {"changed": found.changed, "skipped": found.skipped + len(choice.skipped)}
        return found
