"""Make a failing history short: leave out whatever is not needed for the failure, and tell the rest as a story."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from retrysafe.testing.simulation.application import Deploy
from retrysafe.testing.simulation.checkers import check
from retrysafe.testing.simulation.drawing import draw_svg
from retrysafe.testing.simulation.outcome import Outcome
from retrysafe.testing.simulation.plan import Plan, draw_plan
from retrysafe.testing.simulation.scenario import Scenario, build_scenario
from retrysafe.testing.simulation.world import World

MAX_RUNS = 300


class Story(NamedTuple):
    """A failing history, as short as it was made. `runs`: how many histories that took."""

    seed: int
    plan: Plan
    suppressed: frozenset[int]
    problems: list[str]
    outcome: Outcome
    runs: int

    @property
    def command(self) -> str:
        """The line that tells this story again."""
        scenario = self.outcome.scenario
        return f"python -m retrysafe.testing.simulation.replay {name_scenario(scenario)} --seed {self.seed}"

    def __str__(self) -> str:
        faults = Counter(self.outcome.faults.values())
        counted = ", ".join(f"{count} {fault.replace('_', ' ')}" for fault, count in faults.items()) or "none"
        return "\n".join(
            [
                f"seed {self.seed}: {self.problems[0]}",
                f"again, with a drawing: {self.command} --svg story.svg",
                f"plan: {self.plan}",
                f"faults of messages that are left: {counted}",
                *([f"purchases: {', '.join(f'{each.name} is {each.kind}' for each in self.outcome.purchases)}"]),
                self.outcome.history.format_timeline(),
                *(f"BROKEN: {problem}" for problem in self.problems),
            ]
        )

    def draw(self) -> str:
        """The story as an SVG."""
        world = World(self.seed, self.outcome.scenario, plan=self.plan, suppressed=self.suppressed, detailed=True)
        return draw_svg(world.run().history, f"seed {self.seed}: {self.problems[0]}")


def shrink(
    seed: int, deploy: Deploy | Scenario, kinds: tuple[str, ...] | None = None, max_runs: int = MAX_RUNS
) -> Story:
    """The shortest history with the same broken rule that was found within `max_runs` histories."""
    scenario = build_scenario(deploy, kinds)
    story = _play(seed, draw_plan(seed), frozenset(), scenario)
    if not story.problems:
        raise ValueError(f"seed {seed} breaks no rule: there is nothing to make shorter")
    rule = read_rule(story.problems[0])
    runs, better = 1, True
    while better and runs < max_runs:
        better = False
        for candidate in _propose(story):
            runs += 1
            tried = _play(seed, *candidate, scenario)
            if any(read_rule(problem) == rule for problem in tried.problems):
                story, better = tried, True
                break
            if runs >= max_runs:
                break
    return story._replace(runs=runs)


def name_scenario(scenario: Scenario) -> str:
    """How a command names a scenario: the module and the name of the scenario, or of its `deploy`, and the kinds."""
    module = scenario.deploy.__module__
    known = [name for name, value in vars(sys.modules[module]).items() if isinstance(value, Scenario)]
    same = [name for name in known if getattr(sys.modules[module], name).deploy is scenario.deploy]
    if same and getattr(sys.modules[module], same[0]).kinds == scenario.kinds:
        return f"{module}:{same[0]}"
    name = same[0] if same else scenario.deploy.__qualname__
    return f"{module}:{name} --kinds {shlex.quote(','.join(scenario.kinds))}"


def read_rule(problem: str) -> str:
    """The name of the rule that a problem breaks: what stands before the first colon."""
    return problem.partition(":")[0]


def _play(seed: int, plan: Plan, suppressed: frozenset[int], scenario: Scenario) -> Story:
    outcome = World(seed, scenario, plan=plan, suppressed=suppressed).run()
    return Story(seed, plan, suppressed, check(outcome), outcome, 1)


def _propose(story: Story) -> Iterator[tuple[Plan, frozenset[int]]]:
    """Simpler histories, the greatest simplifications first."""
    plan = story.plan
    simpler: list[Callable[[Plan], Plan]] = [
        lambda plan: replace(plan, partitions=0),
        lambda plan: replace(plan, store_restarts=0),
        lambda plan: replace(plan, skew=0.0, drift=0.0),
        lambda plan: replace(plan, senders=1),
        lambda plan: replace(plan, purchases=max(1, plan.purchases - 1)),
        lambda plan: replace(plan, crashes=max(0, plan.crashes - 1)),
        lambda plan: replace(plan, freezes=max(0, plan.freezes - 1)),
    ]
    for change in simpler:
        if change(plan) != plan:
            yield change(plan), story.suppressed
    met = sorted(story.outcome.faults)
    size = len(met)
    while size >= 1:
        for start in range(0, len(met), size):
            yield plan, story.suppressed | frozenset(met[start : start + size])
        size //= 2
