"""Operations: keys of other systems, undo, open steps, what a body may do."""

from __future__ import annotations

import os
import time
from typing import Any

from retrysafe.operations import commits as committing
from retrysafe.operations import flow, foreign, perform, run, undoing
from retrysafe.operations import journal as journals
from retrysafe.operations.errors import StepOutcomeUnknown, Stop
from retrysafe.operations.open_steps import OpenSteps, SentServices
from retrysafe.operations.operation import Operation
from retrysafe.operations.run import OperationRun
from tests.simulation.ablations.base import Ablation, Situation, always, calm, change, substitute, together
from tests.simulation.scenarios.deployments import DEPLOYMENTS
from tests.simulation.scenarios.interruptions import INTERRUPTIONS
from tests.simulation.scenarios.operations import OPERATIONS

ONE = "one effect"
TOLD = "told the truth"

BUSY = calm(crashes=4, reply_lost=0.2, slow=0.3)
"""Messages are slow, so that a crash meets something under way."""
SIDE_BY_SIDE = calm(refused=0.2, slow=0.1, provider_errors=0.4, hosts=2)
"""Steps fail often, and nobody is killed."""
FORGETFUL = calm(reply_lost=0.2, refused=0.05, slow=0.2, crashes=4)
"""Nothing is held up for longer than the provider remembers a key."""


def draw_a_key_each_time(original: Any) -> Any:
    def derive_key(self: Any, *args: Any, **kwargs: Any) -> str:
        return str(original(self, *args, **kwargs))[:40] + os.urandom(8).hex()

    return derive_key


def send_again(original: Any) -> Any:
    def send_once(attempt: Any, step: Any, place: int, given: Any, begun: Any, *, begun_before: bool) -> Any:
        attempt.journal = attempt.journal.with_entry(place, begun)
        return (yield from foreign.send_repeatably(attempt, step, place, given, attempt.latest_time()))

    return send_once


def tell_a_timeout_as_final(original: Any) -> Any:
    def send_once(*args: Any, **kwargs: Any) -> Any:
        try:
            return (yield from original(*args, **kwargs))
        except StepOutcomeUnknown as unknown:
            raise Stop(402, {"charged": False}) from unknown

    return send_once


def read_the_hosts_clock(original: Any) -> Any:
    return lambda self: time.time_ns() // 1000


def age_from_now(original: Any) -> Any:
    def undo_one(attempt: Any, step: Any, place: int, entry: Any) -> Any:
        return (yield from original(attempt, step, place, entry.replace(undo_at=0)))

    return undo_one


def undo_in_order(original: Any) -> Any:
    def undo_all(attempt: Any) -> Any:
        for place in range(len(attempt.journal.entries)):
            entry = attempt.journal.entries[place]
            if entry.state in journals.TO_UNDO:
                yield from undoing.undo_one(attempt, attempt.steps[entry.step], place, entry)
        return (yield from original(attempt))

    return undo_all


def count_every_failure(original: Any) -> Any:
    def count_failure(self: Any) -> bool:
        self.failures += 1
        return True

    return count_failure


def pass_through(original: Any) -> Any:
    def record_outcome(attempt: Any, inner: Any) -> Any:
        yield from inner

    return record_outcome


def find_all_open(original: Any) -> Any:
    def find_open(journal: Any, may_lack_entry: bool) -> tuple[str, ...]:
        last = journal.announced if may_lack_entry and journal.announced not in journal.unmet else ""
        return (*journal.unmet, last) if last else tuple(journal.unmet)

    return find_open


def announce_once_more(original: Any) -> Any:
    return lambda attempt, step, begun=False: original(attempt, step)


def swallow_endings(original: Any) -> Any:
    """A Stop or Undo of a step that the body caught is forgotten."""

    def settle_result(operation: Any, attempt: Any, result: Any, failure: Any, events: Any) -> Any:
        attempt.ending = None
        return (yield from original(operation, attempt, result, failure, events))

    return settle_result


def go_on_after_a_cancelled_step(original: Any) -> Any:
    """A step that the body cancelled is forgotten."""

    def settle_result(operation: Any, attempt: Any, result: Any, failure: Any, events: Any) -> Any:
        if failure is None and isinstance(attempt.broken, flow.OperationError):
            attempt.broken = None
            attempt.journal = attempt.stored
        return (yield from original(operation, attempt, result, failure, events))

    return settle_result


def take_no_find_for_no(original: Any) -> Any:
    def find_outcome(step: Any, given: Any, key: str) -> Any:
        found = yield from original(step, given, key)
        return None if isinstance(found, foreign.FindFailed) else found

    return find_outcome


def count_changed_code(original: Any) -> Any:
    """Code that cannot go on with a run counts as a failure of the run, however quickly it is met again."""

    def settle_unfinished(operation: Any, attempt: Any, error: Exception, events: Any) -> Any:
        if isinstance(error, flow.OperationChanged):
            error = RuntimeError(str(error))
        return (yield from original(operation, attempt, error, events))

    return settle_unfinished


def begin_whatever_is_left(original: Any) -> Any:
    def begin_call(lease: Any, call: Any) -> Any:
        if lease is not None:
            lease.check()
        return call.function()

    return begin_call


def forget_open_steps(original: Any) -> Any:
    return lambda self, journal=None: None


def undo_without_the_open(original: Any) -> Any:
    """A run that is given up is undone, whatever may have been sent beside its entries."""

    def settle_unfinished(operation: Any, attempt: Any, error: Exception, events: Any) -> Any:
        attempt.open = OpenSteps((), 0, attempt.journal.rule)
        return (yield from original(operation, attempt, error, events))

    return settle_unfinished


def compare_fingerprints_only(original: Any) -> Any:
    return lambda self, record, claim: False


ABLATIONS = (
    Ablation(
        "a new downstream key each time",
        ONE,
        substitute(OperationRun, "derive_key", draw_a_key_each_time),
        Situation(kinds=("operation", "saga")),
    ),
    Ablation(
        "what may not be repeated is repeated",
        ONE,
        substitute(foreign, "send_once", send_again),
        Situation(kinds=("careful",)),
    ),
    Ablation(
        "a timeout is the final answer",
        TOLD,
        substitute(foreign, "send_once", tell_a_timeout_as_final),
        Situation(kinds=("careful",)),
    ),
    Ablation(
        "a key is sent after the provider has forgotten it",
        ONE,
        together(always(foreign, "is_key_usable", True), always(undoing, "is_key_usable", True)),
        Situation(OPERATIONS, ("forgotten",), FORGETFUL),
    ),
    Ablation(
        "a key ages by the host's clock",
        ONE,
        substitute(OperationRun, "latest_time", read_the_hosts_clock),
        Situation(
            OPERATIONS,
            ("forgotten",),
            calm(reply_lost=0.2, refused=0.05, slow=0.2, crashes=4, skew=600.0, purchases=1, senders=1),
        ),
    ),
    Ablation(
        "a stuck undo begins its key again",
        "one undo",
        substitute(undoing, "undo_one", age_from_now),
        Situation(OPERATIONS, ("undone",), FORGETFUL),
    ),
    Ablation(
        "a call begins that does not fit its lease",
        "I33 a call fits its lease",
        together(always(perform, "is_call_covered", True), substitute(perform, "begin_call", begin_whatever_is_left)),
        Situation(
            kinds=("operation", "saga", "careful"), plan=calm(slow=0.5, reply_lost=0.3, request_lost=0.2, freezes=4)
        ),
    ),
    Ablation(
        "an unknown step is not undone",
        TOLD,
        substitute(
            undoing,
            "can_undo",
            lambda original: lambda attempt, entry: entry.state == "done" and original(attempt, entry),
        ),
        Situation(OPERATIONS, ("given_up",), change(reply_lost=0.2)),
    ),
    Ablation(
        "undos in the order of their steps",
        "I24 reverse order",
        substitute(undoing, "undo_all", undo_in_order),
        Situation(OPERATIONS, ("two_undos",)),
    ),
    Ablation(
        "attempts without a bound",
        "I21 bounded attempts",
        together(always(OperationRun, "count_failure", False), always(Operation, "is_exhausted", False)),
        Situation(OPERATIONS, ("poison",), calm()),
    ),
    Ablation(
        "an ending that the body swallows is lost",
        TOLD,
        substitute(flow, "settle_result", swallow_endings),
        Situation(OPERATIONS, ("swallowed",)),
    ),
    Ablation(
        "a step that the body cancels is forgotten",
        TOLD,
        substitute(flow, "settle_result", go_on_after_a_cancelled_step),
        Situation(OPERATIONS, ("hurried",), change(reply_lost=0.2)),
    ),
    Ablation(
        "a find that fails means no",
        ONE,
        substitute(foreign, "find_outcome", take_no_find_for_no),
        Situation(OPERATIONS, ("found",), calm(reply_lost=0.2, refused=0.2, crashes=2)),
    ),
    Ablation(
        "the end of a run is reported as nothing done",
        TOLD,
        together(
            substitute(committing, "record_outcome", pass_through),
            substitute(flow, "record_outcome", pass_through),
            substitute(flow, "unsettled_error", lambda original: lambda operation, attempt, failure, away: away),
        ),
        Situation(kinds=("operation", "saga"), plan=calm(slow=0.3, reply_lost=0.2, store_restarts=3)),
    ),
    Ablation(
        "a store that goes away between two steps has done nothing",
        TOLD,
        substitute(flow, "unsettled_error", lambda original: lambda operation, attempt, failure, away: away),
        Situation(kinds=("saga",), plan=change(store_restarts=1, reply_lost=0.2)),
    ),
    Ablation(
        "a begun step that was announced is taken for another call",
        "I30 convergence",
        together(substitute(run, "find_open", find_all_open), substitute(foreign, "announce", announce_once_more)),
        Situation(kinds=("operation",), plan=change(reply_lost=0.2, crashes=4)),
    ),
    Ablation(
        "an operator's undo leaves out what was sent without a trace",
        TOLD,
        together(always(flow, "must_retrace", False), substitute(OperationRun, "left_out_error", forget_open_steps)),
        Situation(INTERRUPTIONS, ("undone",), BUSY),
    ),
    # Deployments -----------------------------------------------------------------------------------------
    Ablation(
        "a step before the charge changes its key",
        ONE,
        together(always(OpenSteps, "check_call", ""), substitute(OperationRun, "left_out_error", forget_open_steps)),
        Situation(DEPLOYMENTS, ("inserted",), BUSY),
    ),
    Ablation(
        "another step is sent while one is open",
        ONE,
        together(always(OpenSteps, "check_call", ""), substitute(OperationRun, "left_out_error", forget_open_steps)),
        Situation(DEPLOYMENTS, ("renamed",), BUSY),
    ),
    Ablation(
        "another service is not noticed",
        ONE,
        always(SentServices, "compare", ""),
        Situation(DEPLOYMENTS, ("moved_service",), BUSY),
    ),
    Ablation(
        "other code ends a run without the open step",
        TOLD,
        substitute(OperationRun, "left_out_error", forget_open_steps),
        Situation(DEPLOYMENTS, ("stopped",), BUSY),
    ),
    Ablation(
        "a begun step is sent with other arguments",
        "I17 one key, one request",
        always(OperationRun, "compare_arguments", None),
        Situation(DEPLOYMENTS, ("other_arguments",), SIDE_BY_SIDE),
    ),
    Ablation(
        "changed code uses up the attempts",
        "I35 no undo without a cause",
        together(
            substitute(flow, "settle_unfinished", count_changed_code),
            substitute(OperationRun, "count_failure", count_every_failure),
        ),
        Situation(DEPLOYMENTS, ("other_input",), BUSY),
    ),
    Ablation(
        "a wider input is another request",
        "I35 a retry is not refused",
        substitute(Operation, "is_same_request", compare_fingerprints_only),
        Situation(DEPLOYMENTS, ("wider_input",), BUSY),
    ),
    Ablation(
        "a run is given up and undone without its open step",
        TOLD,
        together(substitute(flow, "settle_unfinished", undo_without_the_open), always(OpenSteps, "check_call", "")),
        Situation(DEPLOYMENTS, ("failing",), BUSY),
    ),
)
