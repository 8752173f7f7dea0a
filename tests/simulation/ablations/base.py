"""What an ablation is, and how its seeds are searched."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from retrysafe.testing.simulation import Plan, Scenario, World, check
from retrysafe.testing.simulation.loop import Overrun
from retrysafe.testing.simulation.network import FaultRates
from retrysafe.testing.simulation.plan import draw_plan
from retrysafe.testing.simulation.shop import SHOP
from retrysafe.testing.simulation.shrink import read_rule
from retrysafe.testing.simulation.world import MAX_STEPS as WORLD_STEPS

Patch = Callable[[], AbstractContextManager[Any]]
PlanHint = Callable[[Plan], Plan]


MAX_STEPS = 60_000
"""Code without its safeguard may go round for ever. A usual history has a few thousand steps."""
CONVERGENCE = "I30 convergence"
"""Where this is the rule, a history may take as many steps as any other, and must come to its end."""


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
        world = World(seed, self.scenario, kinds=self.kinds, plan=self.plan(draw_plan(seed)))
        return check(world.run())

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


def find_seed(ablation: Ablation, first: int, last: int) -> int | None:
    """The first seed whose history breaks the rule with the safeguard gone."""
    steps = WORLD_STEPS if ablation.rule == CONVERGENCE else MAX_STEPS
    with ablation.patch(), mock.patch("retrysafe.testing.simulation.world.MAX_STEPS", steps):
        for seed in range(first, last):
            gc.collect(0)  # what the last history left; in a process that only searches, nothing else collects it
            try:
                problems = ablation.situation.play(seed)
            except Overrun as overrun:  # breaks no rule but this one
                problems = [f"{CONVERGENCE}: {overrun}"]
            except AssertionError:  # of the library itself, without its safeguard
                continue
            if any(read_rule(problem) == ablation.rule for problem in problems):
                return seed
    return None


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


def substitute(owner: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """Replace an attribute by what `make` makes of it."""

    def patch() -> AbstractContextManager[Any]:
        return mock.patch.object(owner, name, make(getattr(owner, name)))

    return patch


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
