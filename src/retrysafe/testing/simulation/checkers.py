"""What must be true of a history when it is over. Each check names the rule that it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from retrysafe.core.states import State
from retrysafe.testing.simulation.outcome import Outcome
from retrysafe.testing.simulation.scenario import Checker


def check_one_effect(outcome: Outcome) -> Iterator[str]:
    """One charge for each purchase, and one refund at most; a charge that was refunded is one that was undone."""
    for purchase in outcome.purchases:
        charged = outcome.provider.count(purchase.name)
        if charged > 1:
            yield f"one effect: {purchase.name} ({purchase.kind}) was charged {charged} times"
        if outcome.provider.count(purchase.name, "refund") > 1:
            yield f"one undo: {purchase.name} was refunded more than once"


def check_nothing_after_its_undo(outcome: Outcome) -> Iterator[str]:
    """No charge is sent after its refund was (I24). A message that is held up on its way was sent before."""
    undone: dict[tuple[str, int], float] = {}
    for event in outcome.history.find("sends"):
        kind, run = event.data["kind"], (event.about, event.data.get("life", 0))
        if kind == "refund":
            undone.setdefault(run, event.at)
        elif kind == "charge" and run in undone:
            yield f"I24 nothing after its undo: {event.where} sent a charge of {event.about} after its refund"


def check_keys(outcome: Outcome) -> Iterator[str]:
    """A key of the provider stands for one request (I17)."""
    for misuse in outcome.provider.misused:
        yield f"I17 one key, one request: {misuse}"


def check_walls(outcome: Outcome) -> Iterator[str]:
    """An application's provider knows no purchase of the other application (I34)."""
    other = outcome.neighbour
    if other is None:
        return
    for one, stranger in ((outcome, other), (other, outcome)):
        names = {purchase.name for purchase in stranger.purchases}
        for charge in one.provider.ledger:
            if charge.purchase in names:
                yield f"I34 walls: {charge.kind} of {charge.purchase} with the account of another application"


def check_told_the_truth(outcome: Outcome) -> Iterator[str]:
    """A client that was told 2xx has been charged once; one that was told "declined" has not."""
    for purchase in outcome.purchases:
        charged = outcome.provider.count(purchase.name) - outcome.provider.count(purchase.name, "refund")
        for reply in outcome.replies.get(purchase.name, ()):
            if reply.status < 300 and charged < 1:
                yield f"told the truth: {purchase.name} was told {reply.status} and never charged"
            if reply.status == 402 and charged > 0:
                yield f"told the truth: {purchase.name} was told {reply.status} and is charged"


def check_same_answer(outcome: Outcome) -> Iterator[str]:
    """Everybody who asks with one key gets the same answer, byte for byte (I6)."""
    for purchase in outcome.purchases:
        told = {(reply.status, reply.body) for reply in outcome.replies.get(purchase.name, ())}
        if len(told) > 1:
            yield f"I6 same answer: {purchase.name} was told {sorted(told)}"


def check_nothing_lost(outcome: Outcome) -> Iterator[str]:
    """Each record is finished, or visible to a person (I30, I13)."""
    for record in outcome.records.values():
        if record.state is State.CLAIMED:
            yield f"I30 convergence: {record.key} is still claimed, attempt {record.attempt}, at {record.point!r}"
        if record.state is State.RELEASED and record.point:
            yield f"I30 convergence: {record.key} rests at {record.point!r} and nobody goes on with it"


def check_nothing_forgotten(outcome: Outcome) -> Iterator[str]:
    """As `check_nothing_lost`, where the store has lost what it had acknowledged. If it lost the answer of a key that
    may run again, only a client's retry goes on with that key, and the client may have been told already
    (`check_everybody_is_told`). Such a key is shown as lapsed."""
    left = {number: record for number, record in outcome.records.items() if record.on_lapse != "rerun"}
    yield from check_nothing_lost(replace(outcome, records=left))


def check_everybody_is_told(outcome: Outcome) -> Iterator[str]:
    """Each client has a final answer when the faults have stopped for long enough, or a person has its key."""
    shown = {record.key for record in outcome.records.values() if record.state is State.UNCERTAIN}
    for purchase in outcome.purchases:
        missing = outcome.plan.senders - len(outcome.replies.get(purchase.name, ()))
        if missing and purchase.key not in shown:
            yield f"I30 convergence: {missing} clients of {purchase.name} ({purchase.kind}) never got an answer"


def check_nothing_is_left_running(outcome: Outcome) -> Iterator[str]:
    """When everything is settled, an application has left no task, timer or transaction behind (RELIABILITY: leak check
    on each run)."""
    for leak in outcome.left_running:
        yield f"no leak: {leak}"


def check_reports(outcome: Outcome) -> Iterator[str]:
    """What the application itself, or somebody who plays a part in it, found wrong."""
    for event in outcome.history.find("broken"):
        yield f"{event.data['rule']}: {event.data['why']} at {event.at:.3f} s"


CHECKERS: tuple[Checker, ...] = (
    check_one_effect,
    check_nothing_after_its_undo,
    check_keys,
    check_walls,
    check_told_the_truth,
    check_same_answer,
    check_nothing_lost,
    check_everybody_is_told,
    check_nothing_is_left_running,
    check_reports,
)


WEAK_CHECKERS: tuple[Checker, ...] = (check_nothing_forgotten, check_everybody_is_told, check_nothing_is_left_running)
"""What is left to promise when a store has lost what it had acknowledged: work comes to an end, and clients are told.
Such a store says that it is not durable, and `retrysafe doctor` says what follows."""


def check(outcome: Outcome) -> list[str]:
    """Everything that is wrong with a history."""
    checkers = (*CHECKERS, *outcome.scenario.checkers)
    if outcome.plan.is_lossy and outcome.plan.failovers:
        checkers, outcome.broken = WEAK_CHECKERS, []
    problems = [*outcome.broken, *(problem for checker in checkers for problem in checker(outcome))]
    return problems if outcome.neighbour is None else [*problems, *check(outcome.neighbour)]
