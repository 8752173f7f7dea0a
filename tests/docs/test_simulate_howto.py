"""docs/howto/simulate.md as a user follows it: the page's files in a folder of their own, its commands in a terminal.

Only the size of the campaign is made smaller.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "simulate.md").read_text("utf-8")
FILES = dict(re.findall(r'^```python title="([\w./]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL))
(DEFECT,) = re.findall(r"^<!-- no-run -->\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
CHECK, SOME, REPLAY, MANY, STORY = re.findall(r"^\$ python (-m .*)$", PAGE, re.MULTILINE)
CORRECT = "def choose_key(key: str) -> str:\n    return key\n"
FEWER = (("--seeds 100000", "--seeds 60"), ("--jobs 4", "--jobs 1"))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "shop" / "simulated.py"


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *shlex.split(command)], capture_output=True, text=True, check=False)


def run_campaign() -> subprocess.CompletedProcess[str]:
    command = MANY
    for words, fewer in FEWER:
        assert words in command
        command = command.replace(words, fewer)
    return run(command)


def test_the_application_of_the_page_breaks_no_rule(shop: Path) -> None:
    checked = run(CHECK)
    assert checked.returncode == 0, checked.stderr
    done = run_campaign()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 histories" in done.stdout
    assert "0 with violations" in done.stdout
    told = run(STORY.replace("SEED", "11"))
    assert "breaks no rule" in told.stdout, told.stderr


def test_the_application_with_a_database_breaks_no_rule(shop: Path) -> None:
    checked = run("-m shop.with_rows")
    assert checked.returncode == 0, checked.stderr


def test_the_planted_defect_is_found_and_told(shop: Path, tmp_path: Path) -> None:
    """With the defect of the page in the module: the check and the campaign fail, and each command tells the story."""
    assert CORRECT in FILES["shop/simulated.py"]
    shop.write_text(FILES["shop/simulated.py"].replace(CORRECT, DEFECT))
    assert "breaks a rule" in run(CHECK).stderr
    done = run(SOME)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "was charged" in done.stdout
    again = re.search(r"^ +python (-m retrysafe\.testing\.simulation .* --story (\d+))$", done.stdout, re.MULTILINE)
    assert again is not None
    told = run(again[1])
    assert "was charged" in told.stdout, told.stderr
    assert "is told" in told.stdout
    drawn = run(REPLAY.replace("SEED", again[2]))
    assert drawn.returncode == 1, drawn.stderr
    assert (tmp_path / "story.svg").read_text().startswith("<svg")
    (tmp_path / "story.svg").unlink()
    found = run("find_story.py")
    assert "BROKEN" in found.stdout, found.stderr
    assert (tmp_path / "story.svg").read_text().startswith("<svg")
