"""`retrysafe demo` as a process, for tests over HTTP and in a browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.servers.ports import free_port
from tests.waiting import until

PATIENCE = 120.0
"""Seconds for one answer, and for the demo to come up, on a machine that does ten other things."""
QUICK = {"speed": 20}
"""The provider answers almost at once, so a charge fits into its two seconds on a busy machine. A page sets its own."""


@contextmanager
def running_demo(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Its address and its process. What it wrote is in `folder`.log, for a test that fails."""
    port = free_port()
    command = [sys.executable, "-m", "retrysafe.cli.main", "demo", "--port", str(port), "--data", str(folder), *options]
    with folder.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        url = f"http://127.0.0.1:{port}"
        try:
            until(lambda: answers(url) or process.poll() is not None, PATIENCE, "the demo to answer")
            assert process.poll() is None, folder.with_suffix(".log").read_text()
            httpx.put(url + "/demo/speed", json=QUICK, timeout=PATIENCE).raise_for_status()
            yield url, process
        finally:
            process.kill()
            process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url + "/provider/charges", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False
