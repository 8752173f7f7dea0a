"""The files of docs/howto/rq.md and bullmq.md work as they stand, on a real Redis: they cannot run without a server, so
tests/docs/test_pages.py does not run them. Those of arq.md run in tests/jobs/test_arq.py, in arq's own environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from redis import Redis

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
FILE = re.compile(r'^```python title="(\S+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)


def write_files(page: str, folder: Path) -> None:
    files = FILE.findall((HOWTO / f"{page}.md").read_text())
    assert files, f"{page}.md has no file"
    for name, text in files:
        (folder / name).write_text(text)


def run(folder: Path, redis: str, *command: str) -> str:
    environment = {**os.environ, "REDIS_URL": redis}
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def forget(redis: str, pattern: str) -> None:
    """Delete what an earlier run left on a server that is not ours: BullMQ and arq ignore an id that they know."""
    with Redis.from_url(redis) as client:
        for name in client.scan_iter(match=pattern):
            client.delete(name)


def test_the_files_of_the_rq_page_run_on_a_worker(tmp_path: Path, redis_url: str) -> None:
    write_files("rq", tmp_path)
    assert run(tmp_path, redis_url, "enqueue.py") == "True False\n"
    run(tmp_path, redis_url, "-m", "rq.cli", "worker", "reports", "--burst", "--url", redis_url)
    assert run(tmp_path, redis_url, "read.py") == "report of 2026-11\n"


def test_the_file_of_the_bullmq_page_runs(tmp_path: Path, redis_url: str) -> None:
    write_files("bullmq", tmp_path)
    forget(redis_url, "bull:payouts:*")
    assert run(tmp_path, redis_url, "payouts.py") == "True False 500 to ada\n"
