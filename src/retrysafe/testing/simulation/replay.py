"""Tell the story of one seed: `python -m retrysafe.testing.simulation.replay MODULE:NAME --seed 7 [--kinds a,b]`.

NAME is a `Scenario`, or a `deploy` function together with `--kinds`. A history that breaks a rule is made short first.
`--svg FILE` draws it. Ends with 1 if a rule is broken.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from retrysafe.errors import UsageError
from retrysafe.testing.simulation.checkers import check
from retrysafe.testing.simulation.drawing import draw_svg
from retrysafe.testing.simulation.importing import import_named
from retrysafe.testing.simulation.scenario import build_scenario
from retrysafe.testing.simulation.shrink import MAX_RUNS, shrink
from retrysafe.testing.simulation.world import World


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m retrysafe.testing.simulation.replay", description=__doc__)
    parser.add_argument("scenario", metavar="MODULE:NAME")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--kinds", default="")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--runs", type=int, default=MAX_RUNS, help="how many histories may be tried to make it short")
    given = parser.parse_args(arguments)
    try:
        found = import_named(given.scenario)
    except UsageError as error:
        parser.error(str(error))
    scenario = build_scenario(found, tuple(given.kinds.split(",")) if given.kinds else None)
    world = World(given.seed, scenario, detailed=given.svg is not None)
    outcome = world.run()
    if not check(outcome):
        print(outcome.history.format_timeline())
        print(f"seed {given.seed} breaks no rule")
        if given.svg is not None:
            given.svg.write_text(draw_svg(outcome.history, f"seed {given.seed} breaks no rule"))
        return 0
    story = shrink(given.seed, scenario, max_runs=given.runs)
    print(story)
    if given.svg is not None:
        given.svg.write_text(story.draw())
    return 1


if __name__ == "__main__":
    sys.path.insert(0, "")  # a scenario of the user's is found in the current directory
    sys.exit(main(sys.argv[1:]))
