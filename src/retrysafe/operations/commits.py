"""The commits of one attempt to the store: the journal, the answer, and what became of a commit whose reply was
lost."""

from __future__ import annotations

from retrysafe.core.ops import Complete, Lookup, Renew
from retrysafe.core.records import Answer
from retrysafe.core.states import OnLapse, State
from retrysafe.core.times import duration_to_micros
from retrysafe.engine.effects import Flow, Persist
from retrysafe.errors import OutcomeUnrecorded, StoreError
from retrysafe.operations.journal import OperationJournal
from retrysafe.operations.open_steps import get_service
from retrysafe.operations.run import OperationRun
from retrysafe.operations.steps import Step


def commit_journal(run: OperationRun, journal: OperationJournal, on_lapse: OnLapse = "resume") -> Flow[None]:
    """Store the journal with an Advance. Raises LeaseLost if another attempt has taken over."""
    if run.unsure:
        yield from reread_advances(run)
    journal, run.unsure = run.stamp_journal(journal), True
    if not (yield Persist(run.build_advance(journal, on_lapse), run.lease.until)):
        raise run.lease_lost_error()
    run.record_advance(journal)


def announce(run: OperationRun, step: Step, *, begun: bool = False) -> Flow[bool]:
    """Before a step: write down that it may happen, unless the last commit said so. Returns True if it was written.
    `begun`: its entry in the journal says so, and an announcement would be of one more call."""
    name = "" if begun else run.name_to_announce(step)
    traceless = begun or name != ""
    announced, services = run.read_announced()
    has_service = not traceless or (step.name in services and services[step.name] == get_service(step))
    if announced == name and has_service and not (run.dirty and step.kind == "foreign"):
        return False
    yield from commit_journal(run, run.journal.replace(announced=name))
    return True


def reread_advances(run: OperationRun) -> Flow[None]:
    """Read the number of the last advance, after an advance whose outcome is unknown. A copy of that advance may still
    be on its way: it is refused if the next advance arrives first, and otherwise makes the store refuse the next."""
    record = (yield Lookup(run.record.id)).record
    if record is None or record.fence != run.fence:
        raise run.lease_lost_error()
    run.advances, run.unsure = record.advances, False


def store_answer(run: OperationRun, answer: Answer) -> Flow[None]:
    """Store the answer. Raises an error that says what is known if it could not be stored."""
    run.lease.settling = True
    yield from record_outcome(run, _complete(run, answer))


def _complete(run: OperationRun, answer: Answer) -> Flow[None]:
    if not (yield Persist(Complete(run.record.id, run.fence, answer), run.lease.until)):
        raise run.lease_lost_error()


def record_outcome(run: OperationRun, flow: Flow[None]) -> Flow[None]:
    """Run a flow that writes how a run ended. If the store does not answer, the steps have run all the same, so the
    error becomes OutcomeUnrecorded."""
    try:
        yield from flow
    except StoreError as error:
        raise OutcomeUnrecorded(run.record.key, error) from error


def commit_was_applied(run: OperationRun) -> Flow[bool]:
    """True if the transaction of `run.pending_journal` was committed although its reply was lost. Does nothing if there
    is none.

    The renewal comes first. On a database with concurrent writers it waits for the row. So a commit that is still on
    its way has either arrived when the record is read, or never will.
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
