"""Operations that go on later, or elsewhere: old lists, old keys, a person's word, the user's own database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from retrysafe.engine.effects import RunTransaction
from retrysafe.operations import foreign, local, undoing
from retrysafe.operations.announcing import FirstStep
from retrysafe.operations.journal import UNNAMED
from retrysafe.operations.open_steps import SentServices
from retrysafe.operations.operation import Operation
from retrysafe.operations.run import OperationRun
from retrysafe.stores.sql.receipts import load_receipts
from retrysafe.testing.simulation import local_shop
from retrysafe.transactions.staging import Staging
from tests.simulation.ablations.base import Ablation, Patch, Situation, always, calm, change, substitute, together
from tests.simulation.ablations.operations import count_every_failure
from tests.simulation.scenarios.deployments import DEPLOYMENTS
from tests.simulation.scenarios.local_deployments import LOCAL_DEPLOYMENTS
from tests.simulation.scenarios.long_ago import LONG_AGO
from tests.simulation.scenarios.operations import OPERATIONS

BUSY = calm(crashes=4, reply_lost=0.2, slow=0.3)
"""Messages are slow, so that a crash meets something under way."""


def always_property(owner: Any, name: str, value: Any) -> Patch:
    return substitute(owner, name, lambda original: property(lambda self: value))


def nothing_to_say() -> Any:
    return False
    yield


def resume_any_run(original: Any) -> Any:
    """A resume that does not say which run it goes on with."""

    def build_resume_claim(self: Operation, record: Any) -> Any:
        task, claim = original(self, record)
        return task, replace(claim, resumes=b"", input=record.input)

    return build_resume_claim


def count_from_the_submission(original: Any) -> Any:
    return lambda self, record, fresh, not_sent=False: original(self, record, False, not_sent=not_sent)


def bar_without_patience(original: Any) -> Any:
    """Whatever the user's database says while a late owner is barred is told as it came."""

    def block_late_owner(attempt: OperationRun) -> Any:
        if attempt.tx_binding.kind == "elsewhere":
            yield RunTransaction(lambda tx: local.block_late_steps(attempt, tx))

    return block_late_owner


def commit_whoever_owns_it(original: Any) -> Any:
    """The rows and the jobs of a local step commit, although the store refuses its recovery point."""

    def commit(attempt: OperationRun, change: Any, tx: Any, staged: list[Any]) -> Any:
        statements = load_receipts(tx.dialect, attempt.tx_binding.names)
        staging = Staging(attempt.record.run, change.name)
        result, text = yield from local.run_function(attempt, change, statements, staging)
        journal, answer = change.update_journal(result, text)
        ops: list[Any] = [staging.build_op(attempt.record.namespace)] if staging.jobs else []
        ops.append(attempt.build_advance(journal))
        if answer is not None:
            ops.append(local.Complete(attempt.record.id, attempt.fence, answer))
        for op in ops:
            plans = statements.plans
            yield from plans.plan_operation(op) if isinstance(op, local.Stage) else plans.apply_fenced(op)
        return result, journal, answer

    return commit


def take_a_local_step_for_it(original: Any) -> Any:
    def compare(self: SentServices, step: Any, what: str = "step") -> str:
        return "" if step.kind == "local" else str(original(self, step, what))

    return compare


def take_a_call_for_it(original: Any) -> Any:
    def compare(self: SentServices, step: Any, what: str = "step") -> str:
        return "" if step.kind == "foreign" else str(original(self, step, what))

    return compare


def keep_unnamed(original: Any) -> Any:
    """The name of a step that other code did not have is not read again."""

    def find_open(self: OperationRun, journal: Any) -> Any:
        if self.record.progress:
            self.first = FirstStep(UNNAMED, {})
        return original(self, journal)

    return find_open


ABLATIONS = (
    Ablation(
        "a local step before the others runs them again",
        "I16 phase once",
        together(
            always_property(OperationRun, "unwritten", False),
            substitute(local, "announce", lambda original: lambda run, step, begun=False: nothing_to_say()),
        ),
        Situation(LOCAL_DEPLOYMENTS, ("squeezed",), BUSY),
    ),
    Ablation(
        "a call that became a local step is forgotten",
        "I35 nothing is forgotten",
        substitute(SentServices, "compare", take_a_local_step_for_it),
        Situation(LOCAL_DEPLOYMENTS, ("became_local",), BUSY),
    ),
    Ablation(
        "a local step that became a call is forgotten",
        "I35 nothing is forgotten",
        substitute(SentServices, "compare", take_a_call_for_it),
        Situation(LOCAL_DEPLOYMENTS, ("became_local",), BUSY),
    ),
    Ablation(
        "a step that other code did not have loses its name",
        "I30 convergence",
        substitute(OperationRun, "_find_open", keep_unnamed),
        Situation(DEPLOYMENTS, ("dropped",), BUSY),
    ),
    Ablation(
        "a resume begins what has expired",
        "one effect",
        substitute(Operation, "_build_resume_claim", resume_any_run),
        Situation(LONG_AGO, ("expired",)),
    ),
    Ablation(
        "a key ages while its run waits for a worker",
        "I17 asked for something",
        substitute(Operation, "_resume_flow", count_from_the_submission),
        Situation(LONG_AGO, ("submitted",), calm(worker_start=300.0)),
    ),
    Ablation(
        "an operator is not believed past the life of a key",
        "I30 an operator is believed",
        always(foreign, "was_unknown", False),
        Situation(OPERATIONS, ("forgotten",), calm(reply_lost=0.3, request_lost=0.2, refused=0.2, crashes=4)),
    ),
    Ablation(
        "every failure counts, however soon",
        "I21 spaced failures",
        substitute(OperationRun, "count_failure", count_every_failure),
        Situation(OPERATIONS, ("poison",), calm(senders=2)),
    ),
    Ablation(
        "a conflict with a late owner is passed on as it came",
        "S31 clear errors",
        substitute(undoing, "block_late_owner", bar_without_patience),
        Situation(local_shop.ELSEWHERE, ("rows_saga",)),
    ),
    Ablation(
        "a local step commits without its fence",
        "I16 phase once",
        substitute(local, "commit_with_store", commit_whoever_owns_it),
        Situation(local_shop.TOGETHER, ("local", "local_first"), change(freezes=4)),
    ),
)
