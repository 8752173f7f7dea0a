"""The store that an operator works on, and the audit row of each action. `act` writes the row, the action is done, and
the row gets what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, cast

from retrysafe.core.ops import Lookup, Op
from retrysafe.core.records import Record
from retrysafe.engine.audit import AuditEntry, begin_audit, end_audit, renew_audit
from retrysafe.engine.drive import run
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import NotUncertain, RetrySafeError, StoreError, StoreUnclear, UsageError
from retrysafe.operators.errors import CommandError, OutOfReach
from retrysafe.stores.base import Capabilities, Store

NO_RECORD_ID = bytes(32)
"""The id of no record. The reply to its Lookup carries the store's time."""

MAX_BECAUSE_CHARACTERS = 2_000


class Reason(NamedTuple):
    """Who acts, and why."""

    actor: str
    because: str

    def entry(self, action: str, records: tuple[str, ...] = (), **details: Any) -> AuditEntry:
        """The audit entry of an action. Raises UsageError without a reason."""
        because = self.because.strip()
        if not because:
            raise UsageError(f"{action} changes records: say why; the reason is stored in the audit row")
        if "\0" in because or len(because) > MAX_BECAUSE_CHARACTERS:
            raise UsageError(
                f"the reason {because[:40]!r}… has {len(because):,} characters: give at most "
                f"{MAX_BECAUSE_CHARACTERS:,}, without NUL; it is stored with every record that is changed"
            )
        return AuditEntry(action, self.actor, because, records, details)


class Session:
    """An open store, and the application whose records may be changed."""

    def __init__(
        self, store: Store, execute: Callable[[Op[Any]], Any], namespace: str, where: str, close: Callable[[], None]
    ) -> None:
        self.store = store
        self._execute = execute
        self.namespace = namespace
        self.where = where
        self.has_ring = False
        self._by_app = execute != store.execute
        self.close = close

    @property
    def capabilities(self) -> Capabilities:
        return self.store.capabilities

    def execute(self, op: Op[Any]) -> Any:
        return self._execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        if self._by_app:
            return [self._execute(op) for op in ops]  # the application encrypts one operation at a time
        return self.store.execute_many(ops)

    def read_time(self) -> int:
        """The store's time. Its clock decides which leases have lapsed."""
        return int(self.execute(Lookup(NO_RECORD_ID)).now)

    def estimate_progress(self, cursor: str) -> int | None:
        """About how much of the store a list has read, in percent. Where lists go by id, the cursor is the last id, and
        ids are hashes: evenly spread. None where the store cannot tell."""
        if not self.capabilities.lists_by_id or len(cursor) != 2 * len(NO_RECORD_ID):
            return None
        return int(cursor[:4], 16) * 100 // 0x10000

    def run(self, flow: Any) -> Any:
        return run(flow, lambda op: self.execute(cast("Op[Any]", op)))

    @contextmanager
    def act(self, entry: AuditEntry) -> Iterator[Audit]:
        """Write the audit row, do the action, write what came of it. Raises LeftOpen if the store went away after the
        row was written: the row stays open, and shows as unknown later."""
        now = self.read_time()
        try:
            row = self.run(begin_audit(self.namespace, entry, now))
        except StoreError as error:
            raise AuditNotWritten(str(error)) from error
        audit = Audit(self, row)
        try:
            yield audit
        except StoreError as error:
            raise LeftOpen(audit, error) from error
        except LeftOpen:
            raise
        except BaseException as error:
            audit.note_failure(error)
            raise
        try:
            self.run(end_audit(row, audit.outcome, audit.result))
        except StoreError as error:
            raise LeftOpen(audit, error, done=True) from error


class AuditNotWritten(OutOfReach):
    """The store took no audit row, so the action was not begun."""


class LeftOpen(OutOfReach):
    """The store went away in the middle of an action. The hint says what is known of it."""

    def __init__(self, audit: Audit, error: StoreError, *, done: bool = False) -> None:
        super().__init__(str(error), describe_left_open(audit, error, done=done))


def describe_left_open(audit: Audit, error: StoreError, *, done: bool) -> str:
    counts = {name: value for name, value in audit.result.items() if type(value) is int and name != "status"}
    so_far = ", ".join(f"{name} {value}" for name, value in counts.items() if value)
    if done:
        known = "the work was done"
    elif isinstance(error, StoreUnclear):
        known = "the change that was not answered may have been made"
    else:
        known = "what failed was not done"
    so_far = f" (so far: {so_far})" if so_far else ""
    return f"{known}{so_far}; audit row {audit.id[:32]} stays open; {audit.advice}"


class Audit:
    """The audit row of an action that is under way. What is put into `result` is stored with it."""

    def __init__(self, session: Session, row: Record) -> None:
        self._session, self.row = session, row
        self.outcome = "done"
        self.result: dict[str, Any] = {}
        self.advice = "look before you give the command again"
        """What to do if the store goes away in the middle. Work that may be repeated says so."""

    @property
    def id(self) -> str:
        return self.row.id.hex()

    def keep_alive(self) -> None:
        self._session.run(renew_audit(self.row))

    def note_failure(self, error: BaseException) -> None:
        """The action failed, and the store answers."""
        outcome = "refused" if isinstance(error, CommandError | UsageError | NotUncertain) else "failed"
        result = {**self.result, "error": type(error).__name__}
        with suppress(RetrySafeError):  # the first error is the one to show
            self._session.run(end_audit(self.row, outcome, result))


def open_on_safe(safe: RetrySafe, close: Callable[[], None] = lambda: None) -> Session:
    """A session on the application's own object: it also reads and writes what is encrypted."""
    session = Session(safe.store, safe.execute, safe.namespace, repr(safe), close)
    session.has_ring = safe.sealed
    return session
