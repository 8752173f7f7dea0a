"""The soak: everything that can be delivered is, in its order and in time; what cannot is visible with its cause."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.opening import store_url

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("RETRYSAFE_SOAK_SECONDS", "300"))


@pytest.mark.campaign
@pytest.mark.parametrize(
    "store", [pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres")]
)
def test_what_can_be_done_is_done_and_the_rest_is_visible(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = store_url(request, tmp_path, store)
    command = [sys.executable, "-m", "tests.worker.soak", url, str(tmp_path), "drive", str(SECONDS), "7"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS + 300, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\n{store}: {told}")
    assert (told["left"], told["not_in_order"], told["strays"]) == (0, [], [])
    assert told["operations"]
    assert told["events"]
    assert told["killing"] == [[True, "Deadly"]] * 2
    assert told["unheard"] == [[False, 0]] * 2
    assert told["hanging"] == 2, "it hangs, or is a dead letter: not gone"
