"""arq, with the interpreter of its own environment (tools/bootstrap.py): the code of the how-to page, and a busy
job."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from tests.jobs.test_killed_workers import ARQ, ROOT

PAGE = ROOT / "docs" / "howto" / "jobs.md"


def run(*arguments: str, folder: Path = ROOT) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    ended = subprocess.run(
        [str(ARQ), *arguments], check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    (block,) = [
        found
        for found in re.findall(r"^<!-- no-run -->\n```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
        if "arq" in found
    ]
    printed = run("-c", f"{block}\nprint([each.name for each in WorkerSettings.functions])", folder=tmp_path)
    assert printed.strip() == "['__main__.charge']"


def test_a_busy_job_comes_back_and_uses_up_no_try(redis_url: str) -> None:
    printed = json.loads(run("-m", "tests.jobs.busy_arq", redis_url).splitlines()[-1])
    assert printed == {"held": [], "runs": [1], "result": 7, "again": ["done", False, 7]}
