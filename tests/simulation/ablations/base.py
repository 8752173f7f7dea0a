"""What an ablation is, and how its seeds are searched."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from unittest import mock

from retrysafe.testing.simulation import Outcome, Plan, Scenario, World, check
from retrysafe.testing.simulation.loop import Overrun
from retrysafe.testing.simulation.network import FaultRates
from retrysafe.testing.simulation.plan import draw_plan
from retrysafe.testing.simulation.shop import SHOP
from retrysafe.testing.simulation.shrink import read_rule
from retrysafe.testing.simulation.world import MAX_STEPS as WORLD_STEPS
from tests.simulation.ablations.reach import MISTAKES, AblationError, Reach, check_fits, watch, watch_reach

Patch = Callable[[], AbstractContextManager[Any]]
PlanHint = Callable[[Plan], Plan]


MAX_STEPS = 60_000
"""Code without its safeguard may go round for ever. A usual history has a few thousand steps."""
CONVERGENCE = "I30 convergence"
"""Where this is the rule, a history may take as many steps as any other, and must come to its end."""


CRASHES = tuple(f"{mistake.__name__}(" for mistake in (*MISTAKES, AssertionError))
"""How the error of an application begins that has met a mistake, or an assertion of the library."""


def keep_plan(plan: Plan) -> Plan:
    """The general mix: whatever the seed draws."""
    return plan


@dataclass(frozen=True, slots=True)
class Situation:
    """Where an ablation is looked for: who takes part, which purchases, and what the plan of a seed is changed to.
    Without an ablation it breaks no rule (`test_scenarios.py`)."""

    scenario: Scenario = SHOP
    kinds: tuple[str, ...] | None = None
    plan: PlanHint = keep_plan

    def play(self, seed: int) -> list[str]:
        """What is wrong with the history of a seed."""
        return check(self.run(seed))

    def run(self, seed: int) -> Outcome:
        world = World(seed, self.scenario, kinds=self.kinds, plan=self.plan(draw_plan(seed)))
        return world.run()

    @property
    def is_general(self) -> bool:
        """Whether this is the general mix of our campaigns."""
        return self.scenario is SHOP and self.kinds is None and self.plan is keep_plan


@dataclass(frozen=True, slots=True)
class Ablation:
    """One safeguard. `patch` takes it out for a block; `rule` is what has to be seen broken."""

    name: str
    rule: str
    patch: Patch
    situation: Situation = Situation()


class Finding(NamedTuple):
    """What a search came to. `seed`: the first one whose history breaks the rule; None: there is none. `reached`: how
    often each patched place ran, in the history of that seed, or else in all of them."""

    seed: int | None
    reached: dict[str, int]
    assertions: int
    """How many histories an assertion of the library ended: without its safeguard it refuses to go on."""


def find_seed(ablation: Ablation, first: int, last: int) -> int | None:
    """The first seed whose history breaks the rule with the safeguard gone."""
    return find(ablation, first, last).seed


def find(ablation: Ablation, first: int, last: int) -> Finding:
    """Look for the first seed whose history breaks the rule with the safeguard gone, and prove that this is the
    patch's doing: a history that breaks a rule without it, too, proves nothing and is passed over. Raises
    AblationError if the patch crashes or never ran."""
    in_all, assertions = Counter[str](), 0
    for seed in range(first, last):
        with ablation.patch(), watch_reach() as reach:
            problems = play_ablated(ablation, seed, reach)
        in_all.update(reach.counts)
        assertions += problems is None
        if problems and any(read_rule(problem) == ablation.rule for problem in problems):
            if not reach.counts.total():
                raise AblationError(
                    f"{ablation.name}, seed {seed}: {ablation.rule!r} was broken, and the patch never ran"
                )
            # A history is the same until a patch changes something: if it holds every rule without, the patch did it.
            if not ablation.situation.play(seed):
                return Finding(seed, dict(reach.counts), assertions)
    return Finding(None, dict(in_all), assertions)


def play_ablated(ablation: Ablation, seed: int, reach: Reach) -> list[str] | None:
    """What is wrong with the history of a seed; None: an assertion of the library ended it. Raises AblationError if
    the patch, or code behind it, crashed."""
    outcome: Outcome | None = None
    steps = WORLD_STEPS if ablation.rule == CONVERGENCE else MAX_STEPS
    gc.collect(0)  # what the last history left; in a process that only searches, nothing else collects it
    with mock.patch("retrysafe.testing.simulation.world.MAX_STEPS", steps):
        try:
            outcome = ablation.situation.run(seed)
        except Overrun as overrun:  # breaks no rule but this one
            problems: list[str] | None = [f"{CONVERGENCE}: {overrun}"]
        except AssertionError:  # of the library itself, without its safeguard
            problems = None
        else:
            problems = check(outcome)
    if reach.crashes:
        raise AblationError(f"{ablation.name}, seed {seed}: the patch crashes: {reach.crashes[0]}")
    for event in outcome.history.find("handler failed") if outcome is not None else ():
        if event.data["error"].startswith(CRASHES):
            raise AblationError(f"{ablation.name}, seed {seed}: the application crashes: {event.data['error']}")
    return problems


SURVIVOR_SEEDS = 20
"""How many histories are played to say why an ablation survived."""


def explain_survivor(ablation: Ablation) -> str:
    """Why nothing was found: was the patched code ever reached?"""
    found = find(ablation, 0, SURVIVOR_SEEDS)
    if not found.reached:
        return f"its patch never ran in {SURVIVOR_SEEDS} histories: it stands where no code passes any more"
    ran = ", ".join(f"{place} {count} times" for place, count in sorted(found.reached.items()))
    return f"in {SURVIVOR_SEEDS} histories ran {ran}; {found.assertions} were ended by an assertion of the library"


# Hints ------------------------------------------------------------------------------------------------


def change(**changes: Any) -> PlanHint:
    """A plan with some of its circumstances set: `change(crashes=2)`. Names of `FaultRates` set the rate of a fault."""
    rates = {name: changes.pop(name) for name in list(changes) if name in FaultRates.__dataclass_fields__}

    def hint(plan: Plan) -> Plan:
        return replace(plan, rates=replace(plan.rates, **rates), **changes)

    return hint


def calm(**changes: Any) -> PlanHint:
    """Nothing goes wrong but what is named."""
    rates = {name: changes.pop(name) for name in list(changes) if name in FaultRates.__dataclass_fields__}

    def hint(plan: Plan) -> Plan:
        return replace(Plan(rates=FaultRates(**rates), purchases=plan.purchases, senders=plan.senders), **changes)

    return hint


# Patches ----------------------------------------------------------------------------------------------


def put(owner: Any, name: str, replacement: Any) -> AbstractContextManager[Any]:
    """Replace an attribute for a block, and watch whether it is reached. Raises AblationError if the replacement cannot
    be called as the original is."""
    place = f"{getattr(owner, '__name__', owner)}.{name}".removeprefix("retrysafe.")
    check_fits(place, inspect.getattr_static(owner, name), replacement)
    return mock.patch.object(owner, name, watch(place, replacement))


def substitute(owner: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """Replace an attribute by what `make` makes of it."""
    return lambda: put(owner, name, make(getattr(owner, name)))


def always(owner: Any, name: str, value: Any) -> Patch:
    """A function that always returns the same."""
    return substitute(owner, name, lambda original: lambda *args, **kwargs: value)


def together(*patches: Patch) -> Patch:
    """Several at once: where one safeguard masks the other."""

    @contextmanager
    def patch() -> Iterator[None]:
        with ExitStack() as stack:
            for each in patches:
                stack.enter_context(each())
            yield

    return patch


def nothing() -> AbstractContextManager[Any]:
    """No change at all: the control."""
    return contextlib.nullcontext()
