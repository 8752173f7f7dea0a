"""One attempt at an operation: its state, and what every step does before and after its own flow.

These are the commits of a run: the claim; one per local step, with the user's writes and the recovery point in it; and
the answer, which is part of the last local step's commit if that step returns it. The result of a foreign step is
stored with the next commit. If the process dies before that, the same call is made again with the same key, and the
other system recognises it. An intent is written first only where that would not be safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from retrysafe.core.keys import derive
from retrysafe.core.ops import Advance
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import OnLapse
from retrysafe.core.times import SECOND_MICROS, duration_to_micros
from retrysafe.engine import typed
from retrysafe.engine.effects import Flow
from retrysafe.engine.events import Events
from retrysafe.engine.heartbeat import Lease
from retrysafe.errors import LeaseLost, OperationChanged, OperationError
from retrysafe.operations import retracing
from retrysafe.operations.announcing import (
    START_PATH,
    StepPredictor,
    extend_path,
    leaves_no_trace,
    read_first_step,
)
from retrysafe.operations.arguments_digest import digest_arguments
from retrysafe.operations.errors import OperationEnding, StepFailed, StepOutcomeUnknown, format_error
from retrysafe.operations.journal import (
    BY_PLACE,
    LARGE_JOURNAL_BYTES,
    UNNAMED,
    OperationJournal,
    StepEntry,
    format_recovery_point,
    warn_large_journal,
)
from retrysafe.operations.open_steps import OpenSteps, SentServices, find_open
from retrysafe.operations.steps import Step
from retrysafe.transactions.binding import TxBinding

BACKOFF_SECONDS = (0.05, 0.25, 1.0)
KEY_MARGIN_SECONDS = 300.0
"""A key is not used any more this long before its life is over. Clocks differ, and the other system counts from when it
first saw the key."""


def retry_delays(tries: int, backoff: tuple[float, ...] = ()) -> list[float]:
    """Seconds before each further try. The last pause is used for all that follow."""
    pauses = backoff or BACKOFF_SECONDS
    return [pauses[min(number, len(pauses) - 1)] for number in range(tries - 1)]


def min_failure_spacing(failures: int) -> float:
    """Seconds between two failures that are counted, at least: 1, 2, 4 … So a client that asks again every second
    during an outage does not use up the attempts of a whole day. It is half of the worker's own pauses, so every
    failure of a worker counts."""
    return min(2.0**failures, MAX_SPACING_SECONDS) / 2


MAX_SPACING_SECONDS = 300.0

StepFlow = Callable[["OperationRun", Step, int, StepEntry | None, dict[str, Any]], Flow[Any]]


class OperationRun:
    """The mutable state of one attempt. Used by one caller at a time."""

    place = 0
    advances = 0
    """The number of advances that this attempt has committed."""
    unsure = False
    """True if an advance was sent and its outcome is unknown."""
    dirty = False
    """True if the journal has changed since the last commit."""
    inside = ""
    """The step that is running."""
    step_task: Any = None
    """The asyncio task that runs it, or ran the last one."""
    body_ended = False
    """True when the body has ended: no step may begin any more."""
    local_call: tuple[int, StepEntry] | None = None
    """The last local step that was called: its place, and its entry if its outcome is unknown."""
    interrupted_change: Any = None
    """The transaction of a local step (StepChange) that was interrupted and whose connection does not answer."""
    given = ""
    """A digest of the arguments of the step that is running."""
    in_doubt = False
    """True if a commit in the user's own database may have arrived, and only its receipt can tell."""
    named = False
    """True if a receipt of this attempt was committed, and with it the row that names the record (receipts.py)."""
    retraces = False
    """True while the body only runs to find the next step (retracing.py). Nothing is sent."""
    reached: tuple[int, StepEntry] | None = None
    """The step that the retrace reached, if it may have been sent: its place and its entry."""
    _warned_large = False

    def __init__(
        self,
        name: str,
        steps: dict[str, Step],
        record: Record,
        *,
        lease: Lease,
        duration: float,
        tx_binding: TxBinding,
        store_now: int,
        asked_at: float,
        clock: Callable[[], float],
        fresh: bool,
        rule: int = BY_PLACE,
        events: Events | None = None,
        predictor: StepPredictor | None = None,
        not_sent: bool = False,
    ) -> None:
        self.name = name
        self.steps = steps
        self.record = record
        self.fence = lease.fence
        self.lease = lease
        self.duration = duration
        self.tx_binding = tx_binding
        self._store_now = store_now
        self._asked_at = asked_at
        self._answered_at = clock()
        self._clock = clock
        self.first = read_first_step(record.run, steps)
        self.stored = self.journal = decode_journal(record, self.first.name, rule)
        self._not_sent = not_sent
        self._events = events or Events()
        attempt = self.fence.attempt
        self.failures = 0 if fresh and attempt == 2 else self.journal.count_failures(attempt - 1)
        """The number of attempts that failed before this one."""
        self.unawaited: list[str] = []
        """Steps that were called and are not awaited yet."""
        self.no_unrecorded_calls = (
            attempt == 1 or (fresh and attempt == 2) or self.journal.is_fully_recorded(attempt - 1)
        )
        """True if no earlier attempt can have sent anything that is not in the journal."""
        self.waited_long = (
            fresh and attempt == 2 and self.latest_time() - record.created > duration_to_micros(KEY_MARGIN_SECONDS)
        )
        """True if the run was submitted so long ago that its keys would seem older than they are, should this attempt
        die: they are counted from `created`."""
        self.adopted = len(self.journal.entries)
        """The number of entries when this attempt began."""
        if not_sent:
            self.journal = self.journal.replace(announced="", unmet=())
        self.open = self._find_open(self.journal)
        """Steps that earlier attempts may have sent without a trace, until this attempt reaches them."""
        sent = {**self.first.services, **self.journal.services} if has_unnamed(self.journal) else self.journal.services
        self.services = SentServices(sent, steps, not_sent, tx_binding.kind == "elsewhere")
        self.since = self.journal.at or record.created
        self._predictor = predictor or StepPredictor()
        self._path = START_PATH
        self.receipts: dict[int, str] = {}
        """While undoing: what the receipts say of local steps of unknown outcome (local.block_late_steps)."""
        self.pending_journal: OperationJournal | None = None
        """A journal that was sent inside a transaction of the user's whose outcome is not known yet."""
        self.answer: Answer | None = None
        self.ending: OperationEnding | None = None
        self.caught: tuple[int, StepFailed] | None = None
        self.broken: Exception | None = None
        check_known_steps(name, steps, self.journal)
        check_undo_services(name, steps, self.journal, self.services)

    # The present time by the store's clock, which is the same for all hosts: the time in its reply to the claim, plus
    # what has passed here since. The store read its clock after we sent the claim and before we got the reply (I33).

    def latest_time(self) -> int:
        """The latest that it can be now."""
        return self._store_now + round((self._clock() - self._asked_at) * SECOND_MICROS)

    def earliest_time(self) -> int:
        """The earliest that it can be now."""
        return self._store_now + round((self._clock() - self._answered_at) * SECOND_MICROS)

    def enter(self, step: Step) -> tuple[int, StepEntry | None]:
        """Begin a call. Returns its place, and its entry from an earlier attempt if there is one."""
        if self.broken is not None:
            raise self.broken
        if self.body_ended:
            raise not_awaited_error(step.name, "")
        if self.unawaited:
            self.broken = not_awaited_error(self.unawaited[0], step.name)
            raise self.broken
        if self.ending is not None:
            raise self.ending  # the body swallowed a Stop or Undo; it still counts
        if self.inside:
            raise OperationError(
                f"step {step.name!r} was called while step {self.inside!r} is running; steps run one after the other, "
                "so that a later attempt meets them in the same order"
            )
        if self.answer is not None:
            raise OperationError(f"step {step.name!r} was called after a local step had already returned the Answer")
        self.record_caught_failure()
        refused = self.open.check_call(step, self.place, self.journal, self.steps, self.services)
        if refused:
            raise OperationChanged(self.name, refused)
        self._predictor.learn(self._path, step.name)
        self._path = extend_path(self._path, step.name)
        place, self.place = self.place, self.place + 1
        known = self.journal.entries[place] if place < len(self.journal.entries) else None
        if known is not None and known.step != step.name:
            raise OperationChanged(
                self.name, f"its step number {place + 1} was {known.step!r} and is now {step.name!r}"
            )
        if known is not None and known.state == "begun":
            refused = self.services.compare(step)
            if refused:
                raise OperationChanged(self.name, refused)
        if (known is None or known.state == "begun") and not self.retraces:
            self.services.record_sending(step)
        return place, known

    def _find_open(self, journal: OperationJournal) -> OpenSteps:
        names = find_open(journal, not self.no_unrecorded_calls)
        return OpenSteps(names, self.adopted, journal.rule, self.first.name or UNNAMED)

    @property
    def left_open(self) -> tuple[str, ...]:
        """The steps that may have been sent, and that are not in the journal."""
        return self.open.list_open(self.journal)

    def left_out_error(self, journal: OperationJournal | None = None) -> OperationChanged | None:
        """The error if the body ends with this journal, in whichever way, and a step is still open."""
        left = self.open.list_open(journal or self.journal)
        return OperationChanged(self.name, self.open.explain(left[0], "this code does not call it")) if left else None

    def predict_announcement(self) -> str:
        """The step that may happen after the next commit without a trace. Empty if it cannot be predicted."""
        name = self._predictor.predict(self._path)
        return self.name_to_announce(self.steps[name]) if name in self.steps else ""

    def read_announced(self) -> tuple[str, Mapping[str, str | None]]:
        """The step that the last commit announced, and the services that are known: by the journal, or by the run's
        number as this code reads it."""
        if self.journal.announced != UNNAMED:
            return self.journal.announced, self.journal.services
        return self.first.name, {**self.first.services, **self.journal.services}

    def name_to_announce(self, step: Step) -> str:
        """The name to write down before a step. Empty if the step leaves a trace of its own."""
        return step.name if leaves_no_trace(step, self.tx_binding.kind) else ""

    def record_caught_failure(self) -> None:
        """The body caught the failure of a step and continued. Enter the failure, so that later attempts meet it,
        too."""
        if self.caught is None:
            return
        (place, failure), self.caught = self.caught, None
        entry = self.journal.entries[place] if place < len(self.journal.entries) else StepEntry(failure.step, "failed")
        self.journal = self.journal.with_entry(place, entry.replace(state="failed", error=failure.why))
        self.dirty = True

    def record_unknown_step(self, unknown: StepOutcomeUnknown) -> None:
        """Enter a local step that committed by itself: the ledger names it, and a person's undo comes to it."""
        if self.local_call is None or self.local_call[1].step != unknown.step:
            return
        place, entry = self.local_call
        self.journal = self.journal.with_entry(place, entry.replace(error=format_error(unknown)))
        self.dirty = True

    def first_sent_time(self, step: Step, place: int, known: StepEntry | None) -> int:
        """The earliest moment at which the key of this step can have been sent. An earlier attempt can have sent only
        an open step, or the first one after its entries, without a trace."""
        if known is not None:
            return known.at
        if self.open.is_met_at(step.name, place):
            return self.since
        if self.no_unrecorded_calls or place > self.adopted:
            return self.earliest_time()
        return self.since

    def derive_key(self, step: Step, place: int, undo: bool = False) -> str:
        return derive(
            self.record.run, step.service, step.name, part=str(self.journal.call_number(step.name, place)), undo=undo
        )

    @property
    def unwritten(self) -> bool:
        """True if the store does not know yet by which rule the calls of this run are numbered."""
        return self.journal.rule != BY_PLACE and not self.record.progress and not self.advances

    def compare_arguments(self, step: Step, known: StepEntry | None, given: dict[str, Any]) -> None:
        """A step that may have been sent must not be sent with other arguments under the same key. For a finished step
        other arguments are only an event: a body that passes the time of day must not be stuck."""
        self.given = digest_arguments(step.function, given)
        if known is None or not known.given or not self.given or known.given == self.given:
            return
        if known.state == "begun":
            raise OperationChanged(
                self.name,
                f"step {step.name!r} was begun with other arguments than it is called with now, and may have been sent",
            )
        self._events.emit("step_changed", self.record.id, self.record.target, (self.record.kind, self.record.target))

    def read_result(self, step: Step, known: StepEntry) -> Any:
        """The result of a finished step, in the type that this code declares."""
        try:
            return typed.load(known.result, step.returns)
        except Exception as error:  # whatever the type's own constructor raises, among others
            why = f"what step {step.name!r} returned cannot be read as {step.returns!r} ({format_error(error, 200)})"
            raise OperationChanged(self.name, why) from error

    def count_failure(self) -> bool:
        """Count this attempt as failed, if enough time has passed since the last failure. Returns True if it counts."""
        now = self.latest_time()
        if self.journal.failed_at and now - self.journal.failed_at < duration_to_micros(
            min_failure_spacing(self.failures)
        ):
            return False
        self.failures += 1
        self.journal = replace(self.journal, failed_at=self.earliest_time())
        return True

    def build_advance(self, journal: OperationJournal, on_lapse: OnLapse = "resume") -> Advance:
        number, lease = self.advances + 1, duration_to_micros(self.duration)
        progress = journal.encode()
        if len(progress) > LARGE_JOURNAL_BYTES and not self._warned_large:
            self._warned_large = True
            warn_large_journal(self.record.target, self.record.id, len(journal.entries), progress)
            self._events.emit(
                "journal_large", self.record.id, self.record.target, (self.record.kind, self.record.target)
            )
        return Advance(self.record.id, self.fence, number, format_recovery_point(journal), progress, on_lapse, lease)

    def record_advance(self, journal: OperationJournal) -> None:
        self.advances, self.unsure = self.advances + 1, False
        self.journal, self.dirty = journal, False

    def stamp_journal(self, journal: OperationJournal) -> OperationJournal:
        """Set what changes with each commit: the open steps, their services, and `at`. `at` moves only if a step ended
        in this attempt and none is open: otherwise a call of an earlier attempt may be out."""
        left = self.open.list_stored(journal)
        unmet = left if journal.rule != BY_PLACE else journal.unmet
        at = self.earliest_time() if len(journal.entries) > self.adopted and not left else journal.at
        return journal.replace(unmet=unmet, services=self.services.select(journal, left), at=at)

    def build_left_journal(self, cause: str) -> OperationJournal:
        """The journal of an attempt that ends in order. Everything that it sent is in it."""
        attempt, journal = self.fence.attempt, self.journal
        if journal.entries and journal.entries[-1].state == "begun":
            last = journal.entries[-1].replace(error=cause)
            journal = journal.with_entry(len(journal.entries) - 1, last)
        all_recorded = (self.no_unrecorded_calls or self.place > self.adopted) and not self.in_doubt
        if self._not_sent and not self.advances and len(journal.entries) == self.adopted:
            # The run did not continue, so what the person said has no effect: the next attempt finds what this one did.
            journal, self.open = journal.replace(announced=self.stored.announced), self._find_open(self.stored)
            all_recorded = False
        all_recorded &= journal.rule != BY_PLACE or not self.open.list_open(journal)
        left = attempt if all_recorded else 0
        return replace(journal, cause=cause, left=left, counted=attempt, failed=self.failures)

    def build_started_journal(self) -> OperationJournal:
        """The first journal of a run that was submitted long ago: nothing can have been sent before now."""
        return replace(self.journal, announced=self.predict_announcement(), at=self.earliest_time(), counted=1)

    def lease_lost_error(self) -> LeaseLost:
        return LeaseLost(self.record.key, self.fence.attempt)


def decode_journal(record: Record, first: str, rule: int) -> OperationJournal:
    """The stored journal. `first` is the step that the run's number announces: it stands in no journal by its name."""
    if record.progress:
        return OperationJournal.decode(record.progress)
    return OperationJournal(rule=rule, announced=UNNAMED if first else "")


def has_unnamed(journal: OperationJournal) -> bool:
    return UNNAMED in (journal.announced, *journal.unmet)


def read_journal(record: Record, steps: dict[str, Step], rule: int) -> OperationJournal:
    """The journal as this code reads it, for people: the step that the run's number announces has its name."""
    first = read_first_step(record.run, steps)
    journal = decode_journal(record, first.name, rule)
    if not has_unnamed(journal):
        return journal
    announced = first.name if journal.announced == UNNAMED else journal.announced
    unmet = dict.fromkeys(first.name if each == UNNAMED else each for each in journal.unmet)
    return journal.replace(announced=announced, unmet=tuple(unmet), services={**first.services, **journal.services})


current: ContextVar[OperationRun | None] = ContextVar("retrysafe_run", default=None)


def check_known_steps(name: str, steps: dict[str, Step], journal: OperationJournal) -> None:
    for entry in journal.entries:
        if entry.step not in steps:
            raise OperationChanged(name, f"it has a step {entry.step!r}, which this code does not know")


def check_undo_services(name: str, steps: dict[str, Step], journal: OperationJournal, services: SentServices) -> None:
    """Refuse a service that is not the one an undo may have been sent for, which is part of the undo's key; and a
    foreign undo of what may have been undone by a local one."""
    for entry in journal.entries if journal.undoing is not None else ():
        refused = services.compare(steps[entry.step], "the undo of") if services.may_be_undone(entry) else ""
        if refused:
            raise OperationChanged(name, refused)


def run_step(
    run: OperationRun, step: Step, step_flow: StepFlow, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Flow[Any]:
    """Run one call of a step: find its place, run its flow, and record how it ended. A body that catches a refusal does
    not go on: what follows could be the refused call under another name or key."""
    try:
        place, known = run.enter(step)
    except OperationChanged as changed:
        run.broken = changed
        raise
    run.inside = step.name
    try:
        if known is not None and known.state == "failed":
            raise StepFailed(step.name, known.error)
        given = step.bind_arguments(args, kwargs)
        if run.retraces and (known is None or known.state == "begun"):
            raise retracing.record_reached_step(run, step, place, known, given)
        run.compare_arguments(step, known, given)
        return (yield from step_flow(run, step, place, known, given))
    except StepFailed as failure:
        if known is None or known.state != "failed":
            run.caught = (place, failure)
        raise
    except OperationEnding as ending:
        run.ending = ending
        raise
    except Exception as error:
        run.broken = error
        raise
    except BaseException:
        # The body cancelled the step (a timeout of its own around the call), or the whole attempt was cancelled. In the
        # second case nothing reads `broken`.
        run.broken = run.broken or step_cancelled_error(step.name)
        raise
    finally:
        run.inside = ""


def step_cancelled_error(step: str) -> OperationError:
    return OperationError(
        f"step {step!r} was cancelled from within the body, and may have been sent; declare the time it may take "
        f"(@operation.foreign(timeout=…)) instead of a timeout around the call"
    )


def not_awaited_error(first: str, second: str) -> OperationError:
    then = f"before step {second!r}" if second else "at all"
    return OperationError(
        f"step {first!r} was called, but not awaited {then}; await each step where it is called: steps run one after "
        "the other, so that a later attempt meets them in the same order (no gather, no create_task)"
    )
