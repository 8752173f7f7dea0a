"""`python -m retrysafe.testing.simulation module:SCENARIO --seeds 10000 --jobs 2`: a campaign from the command line.

`--story SEED` plays one history again, makes it short if it fails, and prints it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from retrysafe.errors import UsageError
from retrysafe.testing.simulation.campaign import Tally, format_report, load_scenario, run_campaign
from retrysafe.testing.simulation.checkers import check
from retrysafe.testing.simulation.shrink import shrink
from retrysafe.testing.simulation.world import World

OUR_SHOP = "retrysafe.testing.simulation.shop:SHOP"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m retrysafe.testing.simulation", allow_abbrev=False, description=__doc__
    )
    parser.add_argument("scenario", nargs="?", default=OUR_SHOP, help="module:name of a Scenario")
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--resume", type=Path, help="keep the state here, and go on from it")
    parser.add_argument("--story", type=int, metavar="SEED", help="print one history")
    return parser


def main(arguments: list[str] | None = None) -> int:
    parser = build_parser()
    given = parser.parse_args(arguments)
    try:
        load_scenario(given.scenario)  # here, in words: the processes of a campaign would only print a traceback
    except (UsageError, TypeError) as error:
        parser.error(str(error))
    if given.story is not None:
        print(tell(given.scenario, given.story))
        return 0
    tally = play(given.scenario, range(given.first, given.first + given.seeds), given)
    return 1 if tally.failing else 0


def play(scenario: str, seeds: range, given: argparse.Namespace) -> Tally:
    """Play some seeds of a scenario, and print the report."""
    tally, seconds = run_campaign(scenario, seeds, jobs=given.jobs, resume=given.resume, seconds=given.seconds, say=say)
    reproduce = f"python -m retrysafe.testing.simulation {scenario} --story {{seed}}"
    print(f"{scenario}, seeds {seeds.start} to {seeds.stop - 1}", flush=True)
    print(format_report(tally, seconds, given.jobs, reproduce), flush=True)
    return tally


def say(line: str) -> None:
    print(line, flush=True)


def tell(name: str, seed: int) -> str:
    """One history: made short if it fails, whole if not."""
    scenario = load_scenario(name)
    outcome = World(seed, scenario).run()
    if check(outcome):
        return str(shrink(seed, scenario))
    return f"seed {seed} breaks no rule\nplan: {outcome.plan}\n{outcome.history.format_timeline()}"


if __name__ == "__main__":
    sys.exit(main())
