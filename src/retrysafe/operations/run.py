"""One attempt at an operation: where it stands, and what every step does before and after its own story.

Which commits there are (DESIGN section 5): the claim; one per local step, with the user's writes and the recovery
point in it; and the answer, which rides in the last local step's commit when that step returns it. A foreign
step's result is carried by the next commit: if the process dies before that, the same call is made again with the
same key, and the other system recognises it. Only where that would not be safe is an intent written first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from retrysafe.core.keys import derive
from retrysafe.core.ops import Advance, Complete, Lookup, Renew
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import OnLapse, State
from retrysafe.core.times import SECOND_MICROS, duration_to_micros
from retrysafe.engine import typed
from retrysafe.engine.effects import Flow, Persist
from retrysafe.engine.events import Events
from retrysafe.engine.heartbeat import Lease
from retrysafe.errors import LeaseLost, OperationChanged, OperationError, OutcomeUnrecorded, StoreError
from retrysafe.operations import retracing, size
from retrysafe.operations.announcing import START, UNNAMED, Habits, announced_in, further, leaves_no_trace
from retrysafe.operations.arguments_digest import digest_arguments
from retrysafe.operations.endings import OperationEnding
from retrysafe.operations.failures import StepFailed
from retrysafe.operations.journal import BY_PLACE, OperationJournal, StepEntry, format_recovery_point
from retrysafe.operations.open_steps import OpenSteps, find_open
from retrysafe.operations.steps import Step
from retrysafe.operations.tx_binding import TxBinding

BACKOFF_SECONDS = (0.05, 0.25, 1.0)
KEY_MARGIN_SECONDS = 300.0
"""Clocks differ, and the other system counts from when it first saw the key: stop using it this much earlier."""


def retry_delays(tries: int, backoff: tuple[float, ...] = ()) -> list[float]:
    """Seconds between so many tries; the last one for all that follow."""
    steps = backoff or BACKOFF_SECONDS
    return [steps[min(number, len(steps) - 1)] for number in range(tries - 1)]


def min_failure_spacing(failures: int) -> float:
    """Seconds that lie at least between two failures that are counted: 1, 2, 4 … A client that asks again every second
    during an outage does not use up what there is for a day. Half of the worker's own pauses, so all of its count."""
    return min(2.0**failures, MAX_SPACING_SECONDS) / 2


MAX_SPACING_SECONDS = 300.0

StepFlow = Callable[["OperationRun", Step, int, StepEntry | None, dict[str, Any]], Flow[Any]]


class OperationRun:
    """The mutable part: one object per attempt, used by one caller at a time."""

    place = 0
    advances = 0
    """How many advances of this attempt were committed."""
    unsure = False
    """Whether one was sent and nobody said how it ended."""
    dirty = False
    inside = ""
    given = ""
    """A digest of what the step that is running was called with."""
    in_doubt = False
    """Whether a commit in the user's own database may have arrived, and only its receipt tells."""
    named = False
    """Whether a receipt of this attempt was committed, and with it what says whose they are (receipts.py)."""
    retraces = False
    """Whether the body is only asked which step comes next: nothing is sent."""
    reached: tuple[int, StepEntry] | None = None
    """What it came to then, if that may have been sent: its place, and what is known of it."""
    _told_large = False

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
        asked: float,
        clock: Callable[[], float],
        fresh: bool,
        rule: int = BY_PLACE,
        events: Events | None = None,
        habits: Habits | None = None,
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
        self._asked_at = asked
        self._answered_at = clock()
        self._clock = clock
        self.stored = self.journal = read_journal(record, steps, rule)
        self._not_sent = not_sent
        self._events = events or Events()
        attempt = self.fence.attempt
        self.failures = 0 if fresh and attempt == 2 else self.journal.count_failures(attempt - 1)
        """How many attempts failed before this one."""
        self.unawaited: list[str] = []
        """Steps that were called and not awaited yet."""
        self.no_unrecorded_calls = (
            attempt == 1 or (fresh and attempt == 2) or self.journal.is_fully_recorded(attempt - 1)
        )
        """Whether no attempt before this one can have called anybody without a trace of it in the journal."""
        self.waited_long = (
            fresh and attempt == 2 and self.latest_time() - record.created > duration_to_micros(KEY_MARGIN_SECONDS)
        )
        """Whether it was submitted so long ago that its keys would be older than they are, should this attempt die."""
        self.adopted = len(self.journal.entries)
        """How many entries there were when this attempt began."""
        if not_sent:
            self.journal = self.journal.but(announced="", unmet=())
        self.open = self._find_open(self.journal)
        """What earlier attempts may have sent without a trace, until this one has come to it."""
        self.since = self.journal.at or record.created
        self._habits = habits or Habits()
        self._path = START
        self.pending_journal: OperationJournal | None = None
        """A journal that was sent inside a user's transaction whose end is not known yet."""
        self.answer: Answer | None = None
        self.ending: OperationEnding | None = None
        self.caught: tuple[int, StepFailed] | None = None
        self.broken: Exception | None = None
        check_known_steps(name, steps, self.journal)

    # By the store's clock, which is the same for all hosts: what it said when it gave us the record, and what has
    # passed here since. It looked at its clock after we asked and before we heard (I33).

    def latest_time(self) -> int:
        """It is not later than this."""
        return self._store_now + round((self._clock() - self._asked_at) * SECOND_MICROS)

    def earliest_time(self) -> int:
        """It is not earlier than this."""
        return self._store_now + round((self._clock() - self._answered_at) * SECOND_MICROS)

    def enter(self, step: Step) -> tuple[int, StepEntry | None]:
        """The place of this call, and what is known of it from an earlier attempt."""
        if self.broken is not None:
            raise self.broken
        if self.unawaited:
            self.broken = not_awaited_error(self.unawaited[0], step.name)
            raise self.broken
        if self.ending is not None:
            raise self.ending  # the body may not go on as if nothing had been said
        if self.inside:
            raise OperationError(
                f"step {step.name!r} was called while step {self.inside!r} is running; steps run one after the other, "
                "so that a later attempt meets them in the same order"
            )
        if self.answer is not None:
            raise OperationError(f"step {step.name!r} was called after a local step had already returned the Answer")
        self.record_caught_failure()
        refused = self.open.meet(step.name, self.place, self.journal, self.steps)
        if refused:
            raise OperationChanged(self.name, refused)
        self._habits.learn(self._path, step.name)
        self._path = further(self._path, step.name)
        place, self.place = self.place, self.place + 1
        if place >= len(self.journal.entries):
            return place, None
        known = self.journal.entries[place]
        if known.step != step.name:
            raise OperationChanged(
                self.name, f"its step number {place + 1} was {known.step!r} and is now {step.name!r}"
            )
        return place, known

    def _find_open(self, journal: OperationJournal) -> OpenSteps:
        return OpenSteps(find_open(journal, not self.no_unrecorded_calls), self.adopted, journal.rule)

    @property
    def left_open(self) -> tuple[str, ...]:
        """The steps that may have been sent, and that are not in the journal."""
        return self.open.left_in(self.journal)

    def left_out(self, journal: OperationJournal | None = None) -> OperationChanged | None:
        """Why the body must not end with this journal, whichever way."""
        left = self.open.left_in(journal or self.journal)
        return (
            OperationChanged(self.name, self.open.explain(left[0], "this code does not come to it")) if left else None
        )

    def foresee(self) -> str:
        """The step that may happen after the next commit without a trace of its own; empty if nobody can tell."""
        name = self._habits.foresee(self._path)
        return self.to_announce(self.steps[name]) if name in self.steps else ""

    def to_announce(self, step: Step) -> str:
        """What is written down before a step: its name, where that matters."""
        return step.name if leaves_no_trace(step, self.tx_binding.kind) else ""

    def record_caught_failure(self) -> None:
        """The body caught a failure and goes on: from now on that is how it went, in every later attempt too."""
        if self.caught is None:
            return
        (place, failure), self.caught = self.caught, None
        began = self.journal.entries[place] if place < len(self.journal.entries) else StepEntry(failure.step, "failed")
        self.journal = self.journal.with_entry(place, began.replace(state="failed", error=failure.why))
        self.dirty = True

    def first_sent_time(self, step: Step, place: int, known: StepEntry | None) -> int:
        """The earliest moment at which this step's key can have been sent. Only a step that is open, or the first one
        after those that an earlier attempt left behind, can have been sent by it without a trace."""
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
        """Whether nobody can know yet by which rule the calls of this run are numbered."""
        return self.journal.rule != BY_PLACE and not self.record.progress and not self.advances

    def compare_arguments(self, step: Step, known: StepEntry | None, given: dict[str, Any]) -> None:
        """A step that may have been sent must not be sent with other arguments under the same key. One that is over is
        over: a body that passes the time of day must not be stuck, but somebody may want to know."""
        self.given = digest_arguments(step.function, given)
        if known is None or not known.given or not self.given or known.given == self.given:
            return
        if known.state == "begun":
            raise OperationChanged(
                self.name,
                f"step {step.name!r} was begun with other arguments than it is called with now, and may have been sent",
            )
        self._events.emit("step_changed", self.record.id, self.record.target)

    def read_result(self, step: Step, known: StepEntry) -> Any:
        """What a finished step returned, as this code types it."""
        try:
            return typed.load(known.result, step.returns)
        except Exception as error:  # whatever the type's own constructor raises, among others
            why = f"what step {step.name!r} returned cannot be read as {step.returns!r} ({format_short_error(error)})"
            raise OperationChanged(self.name, why) from error

    def count_failure(self) -> bool:
        """Count this attempt as failed, if it is long enough after the last one that was. Says whether."""
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
        if size.is_large(progress) and not self._told_large:
            self._told_large = True
            size.warn_of(self.record.target, self.record.id, len(journal.entries), progress)
            self._events.emit("journal_large", self.record.id, self.record.target)
        return Advance(self.record.id, self.fence, number, format_recovery_point(journal), progress, on_lapse, lease)

    def record_advance(self, journal: OperationJournal) -> None:
        self.advances, self.unsure = self.advances + 1, False
        self.journal, self.dirty = journal, False

    def stamp_journal(self, journal: OperationJournal) -> OperationJournal:
        """`at` moves only with a step that ended in this attempt, and while nothing is open: before that, an earlier
        attempt's call may be out."""
        left = self.open.left_in(journal)
        journal = journal.but(unmet=left) if journal.rule != BY_PLACE else journal
        return journal.but(at=self.earliest_time()) if len(journal.entries) > self.adopted and not left else journal

    def build_left_journal(self, cause: str) -> OperationJournal:
        """The journal as this attempt leaves it, by its own will: all that it sent is in it."""
        attempt, journal = self.fence.attempt, self.journal
        if journal.entries and journal.entries[-1].state == "begun":
            last = journal.entries[-1].replace(error=cause)
            journal = journal.with_entry(len(journal.entries) - 1, last)
        told = (self.no_unrecorded_calls or self.place > self.adopted) and not self.in_doubt
        if self._not_sent and not self.advances and len(journal.entries) == self.adopted:
            # Nothing came of what the person said: whoever is next finds what this attempt found.
            journal, self.open = journal.but(announced=self.stored.announced), self._find_open(self.stored)
            told = False
        told &= journal.rule != BY_PLACE or not self.open.left_in(journal)
        return replace(journal, cause=cause, left=attempt if told else 0, counted=attempt, failed=self.failures)

    def build_started_journal(self) -> OperationJournal:
        """The journal of what was submitted long ago: nothing can have been sent before now."""
        return replace(self.journal, at=self.earliest_time(), counted=1)

    def lease_lost_error(self) -> LeaseLost:
        return LeaseLost(self.record.key, self.fence.attempt)


def read_journal(record: Record, steps: dict[str, Step], rule: int) -> OperationJournal:
    """As it is stored, or that of a run of which there is nothing but its number."""
    first = announced_in(record.run, steps)
    if not record.progress:
        return OperationJournal(rule=rule, announced=first)
    journal = OperationJournal.decode(record.progress)
    if UNNAMED not in (journal.announced, *journal.unmet):
        return journal
    # Written by code that did not have the step; this code may.
    announced = first if journal.announced == UNNAMED else journal.announced
    return journal.but(announced=announced, unmet=tuple(first if each == UNNAMED else each for each in journal.unmet))


current: ContextVar[OperationRun | None] = ContextVar("retrysafe_run", default=None)


def check_known_steps(name: str, steps: dict[str, Step], journal: OperationJournal) -> None:
    for entry in journal.entries:
        if entry.step not in steps:
            raise OperationChanged(name, f"it has a step {entry.step!r}, which this code does not know")


def run_step(
    run: OperationRun, step: Step, step_flow: StepFlow, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Flow[Any]:
    """What every call of a step is: its story, with its place found and its failure kept."""
    place, known = run.enter(step)
    run.inside = step.name
    try:
        if known is not None and known.state == "failed":
            raise StepFailed(step.name, known.error)
        given = step.bind_arguments(args, kwargs)
        if run.retraces and (known is None or known.state == "begun"):
            raise retracing.reach(run, step, place, known, given)
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
        # Cancelled from within the body (a timeout of its own around the step), or with all of it: then nobody asks.
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


def format_short_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def commit_journal(run: OperationRun, journal: OperationJournal, on_lapse: OnLapse = "resume") -> Flow[None]:
    """Make a journal the truth, or learn that we are no longer the ones who may."""
    if run.unsure:
        yield from reread_advances(run)
    journal, run.unsure = run.stamp_journal(journal), True
    if not (yield Persist(run.build_advance(journal, on_lapse), run.lease.until)):
        raise run.lease_lost_error()
    run.record_advance(journal)


def announce(run: OperationRun, step: Step) -> Flow[bool]:
    """Before a step: write down that it may happen, unless the last commit has said so. Says whether it was written."""
    name = run.to_announce(step)
    if run.journal.announced == name and not (run.dirty and step.kind == "foreign"):
        return False
    yield from commit_journal(run, run.journal.but(announced=name))
    return True


def reread_advances(run: OperationRun) -> Flow[None]:
    """After an advance whose end nobody told: which number comes next? A copy of it that is still on its way is refused
    when the next one was quicker, and refuses the next one when it was not."""
    record = (yield Lookup(run.record.id)).record
    if record is None or record.fence != run.fence:
        raise run.lease_lost_error()
    run.advances, run.unsure = record.advances, False


def store_answer(run: OperationRun, answer: Answer) -> Flow[None]:
    """Store the answer, or say truthfully why it is not stored."""
    run.lease.settling = True
    yield from record_outcome(run, _complete(run, answer))


def _complete(run: OperationRun, answer: Answer) -> Flow[None]:
    if not (yield Persist(Complete(run.record.id, run.fence, answer), run.lease.until)):
        raise run.lease_lost_error()


def record_outcome(run: OperationRun, flow: Flow[None]) -> Flow[None]:
    """Writes that tell how a run ended. That the store does not answer them does not mean that nothing was done."""
    try:
        yield from flow
    except StoreError as error:
        raise OutcomeUnrecorded(run.record.key, error) from error


def commit_was_applied(run: OperationRun) -> Flow[bool]:
    """Whether the transaction in `run.trying` was committed, although nobody said so. Asks nothing if there is none.

    Renewing comes first: on a database that lets others write meanwhile it waits for the row, so that a commit which
    is still on its way has either arrived when the record is read, or never will.
    """
    if run.pending_journal is None:
        return False
    yield Persist(Renew(run.record.id, run.fence, duration_to_micros(run.duration)), run.lease.until)
    record = (yield Lookup(run.record.id)).record
    if record is None or record.fence != run.fence or record.state is State.RELEASED:
        raise run.lease_lost_error()
    run.pending_journal = None
    if record.advances != run.advances + 1:
        return False
    run.record_advance(OperationJournal.decode(record.progress))
    if record.state is State.COMPLETED:
        run.answer = record.answer
    return True
