"""The server is killed again and again under load, and nothing acknowledged is lost (I10, I27).

For each store that calls itself durable; entered in tests/faults/victims.py. `RETRYSAFE_KILLS` says how often.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from retrysafe.stores.diagnosis import diagnose
from tests.faults.load import Told, check, completed
from tests.faults.victims import VICTIMS
from tests.opening import open_do
from tests.waiting import until

KILLS = int(os.environ.get("RETRYSAFE_KILLS", "3"))
ENOUGH = 20
"""Keys that are completed between two kills."""
FEW = {"duckdb": 4}
"""A tool for analysis: a commit takes its time."""

DROPS_SOCKETS = ("mongodb",)
"""pymongo leaves the sockets it was opening when its server died to the garbage collector, which says so."""


def marks(name: str) -> list[pytest.MarkDecorator]:
    quiet = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
    own = [pytest.mark.store(name), pytest.mark.xdist_group(f"killed {name}")]
    return [*own, *(quiet if name in DROPS_SOCKETS else [])]


PARAMETERS = [pytest.param(name, marks=marks(name)) for name in VICTIMS]


@pytest.mark.parametrize("store", PARAMETERS)
@pytest.mark.timeout(3600)
def test_kills_under_load(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    request.getfixturevalue(f"{store}_url")  # says so, as every test does, where there is no such server to be had
    victim = VICTIMS[store](tmp_path)
    try:
        assert unfit(victim.url) == [], "set up here so that it promises everything"
        for _ in range(KILLS):
            work(victim.told, FEW.get(store, ENOUGH))
            victim.kill()
        work(victim.told, FEW.get(store, ENOUGH))
        victim.finish()
        do = open_do(victim.url, "sync")
        check(victim.told, do)
        do.close()
        print(f"{store}: {KILLS} kills, {completed(victim.told)} keys completed, none lost, none granted twice")
    finally:
        victim.close()
        gc.collect()  # what was dropped is found here, and not in the middle of somebody else's test


def work(told: list[Told], enough: int) -> None:
    mark = completed(told)
    until(lambda: completed(told) >= mark + enough, 120, "work between the kills")


def unfit(url: str) -> list[str]:
    """The settings that take something off the promise. A temporary folder in memory is the machine's own choice: it
    survives the death of a process as a disk does. What stands in for DynamoDB promises nothing, and is held to it."""
    excused = ("filesystem", "emulator")
    return [one.setting for one in diagnose(url).findings if not one.fine and one.setting not in excused]
