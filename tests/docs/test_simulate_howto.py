"""docs/howto/simulate.md as a user follows it: the page's code in a module of their own, its commands in a terminal.

Only the size of the campaign is made smaller. The Python blocks run one after the other in test_pages.py, too.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "simulate.md").read_text("utf-8")
APPLICATION, DEFECT, _, _, CAMPAIGN = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
REPLAY, MANY, STORY = re.findall(r"^\$ python (-m retrysafe\.testing\.simulation.*)$", PAGE, re.MULTILINE)
FEWER = (("--seeds 100000", "--seeds 60"), ("--jobs 4", "--jobs 1"))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    module = tmp_path / "shop" / "simulated.py"
    module.write_text(APPLICATION + CAMPAIGN)
    return module


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *shlex.split(command)], capture_output=True, text=True, check=False)


def run_campaign() -> subprocess.CompletedProcess[str]:
    command = MANY
    for words, fewer in FEWER:
        assert words in command
        command = command.replace(words, fewer)
    return run(command)


def test_the_application_of_the_page_breaks_no_rule(shop: Path) -> None:
    done = run_campaign()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 histories" in done.stdout
    assert "0 with violations" in done.stdout
    told = run(STORY)
    assert "breaks no rule" in told.stdout, told.stderr


def test_the_planted_defect_is_found_and_told(shop: Path, tmp_path: Path) -> None:
    """With the defect of the page in the module: the campaign fails, and each of its commands tells the story."""
    application, _, _ = APPLICATION.partition("for seed in range(10)")
    defect, _, _ = DEFECT.partition("failing = ")
    campaign, _, _ = CAMPAIGN.partition("assert ")
    shop.write_text(application + defect + campaign)
    done = run_campaign()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "was charged" in done.stdout
    again = re.search(r"^ +python (-m retrysafe\.testing\.simulation .* --story (\d+))$", done.stdout, re.MULTILINE)
    assert again is not None
    told = run(again[1])
    assert "was charged" in told.stdout, told.stderr
    assert "is told" in told.stdout
    drawn = run(REPLAY.replace("--seed 7", f"--seed {again[2]}"))
    assert drawn.returncode == 1, drawn.stderr
    assert (tmp_path / "story.svg").read_text().startswith("<svg")
