"""arq, with the interpreter of its own environment (tools/bootstrap.py): the files of its guide, and a busy
job."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.docs.test_queue_howto import forget, write_files
from tests.jobs.test_killed_workers import ARQ, ROOT


def run(*arguments: str, folder: Path = ROOT, redis: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))), "REDIS_URL": redis}
    ended = subprocess.run(
        [str(ARQ), *arguments], check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def test_the_files_of_the_page_run_on_a_worker(tmp_path: Path, redis_url: str) -> None:
    write_files("arq", tmp_path)
    forget(redis_url, "arq:*charge-*")
    assert run("enqueue.py", folder=tmp_path, redis=redis_url) == "True False\n"
    run("-m", "arq", "tasks.WorkerSettings", "--burst", folder=tmp_path, redis=redis_url)
    assert run("read.py", folder=tmp_path, redis=redis_url) == "charged 500 for order-7\n"


def test_a_busy_job_comes_back_and_uses_up_no_try(redis_url: str) -> None:
    printed = json.loads(run("-m", "tests.jobs.busy_arq", redis_url).splitlines()[-1])
    assert printed == {"held": [], "runs": [1], "result": 7, "again": ["done", False, 7]}
