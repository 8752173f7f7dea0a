"""Two applications in one store, two workers each (rule 15, I34): each does all that is its own and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.opening import store_url

ROOT = Path(__file__).parents[2]
NUMBER = int(os.environ.get("RETRYSAFE_NEIGHBOURS", "10000"))
"""Operations, jobs and events of the campaign, in all."""
SECONDS = float(os.environ.get("RETRYSAFE_NEIGHBOURS_SECONDS", "1200"))
STORES = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("postgres", "redis")]


def neighbours(
    request: pytest.FixtureRequest, folder: Path, store: str, *, number: int, kills: int
) -> dict[str, object]:
    url = store_url(request, folder, store)
    command = [sys.executable, "-m", "tests.worker.neighbours", url, str(folder), "drive", str(number), str(kills)]
    done = subprocess.run(
        [*command, str(SECONDS)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS + 300
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    assert (told["crossings"], told["left"]) == (0, 0), told
    assert told["done"] == told["sent"], told
    return told


@pytest.mark.parametrize("store", STORES)
def test_neighbours_do_not_touch_each_others_work(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> None:
    neighbours(request, tmp_path, store, number=240, kills=2)


@pytest.mark.campaign
@pytest.mark.parametrize("store", STORES)
def test_nor_in_ten_thousand(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = neighbours(request, tmp_path, store, number=NUMBER, kills=20)
    with capsys.disabled():
        print(f"\n{store}: {told}")
