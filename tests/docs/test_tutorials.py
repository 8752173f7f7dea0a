"""The two tutorials work as they stand: their files are written to a folder, and their commands are run in order.

The commands run in one bash, as a reader would type them, on a free port. After each `sh` block, the lines of the
`console` block that follows must be in what the commands printed.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("your-api.md", "crash-it.md")
BLOCK = re.compile(r'^```(sh|console|python title="(\S+)")\n(.*?)^```', re.MULTILINE | re.DOTALL)
MARK = "=== end of block"
WAIT_FOR_SERVER = """
for _ in $(seq 200); do (echo > /dev/tcp/127.0.0.1/PORT) 2>/dev/null && break; sleep 0.05; done
"""


def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def build_script(port: str) -> tuple[str, dict[str, str], list[list[str]]]:
    """The commands of both pages as one script, the files they need, and the lines that each block must print."""
    commands, files, expected = ["set -m", "exec 2>&1"], {}, []
    for page in PAGES:
        for kind, name, text in BLOCK.findall((ROOT / "docs" / "tutorial" / page).read_text()):
            if name:
                files[name] = text
            elif kind == "sh" and not text.startswith("pip install"):
                ready = WAIT_FOR_SERVER.replace("PORT", port)
                lines = [f"{line}{ready}" if line.endswith(" &") else line for line in text.splitlines()]
                commands += [*lines, f"echo; echo '{MARK}'"]
                expected.append([])
            elif kind == "console":
                expected[-1] = text.splitlines()
    return "\n".join(commands).replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace(
        "--port 8000", f"--port {port}"
    ), files, expected  # fmt: skip


def test_the_tutorials_work_as_they_stand(tmp_path: Path) -> None:
    script, files, expected = build_script(free_port())
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert set(files) == {"shop.py", "orders.py"}
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    shell = subprocess.Popen(
        ["bash", "-c", script + "\nkill $(jobs -p) 2>/dev/null; wait"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, _ = shell.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        raise
    blocks = printed.split(MARK)
    assert len(blocks) == len(expected) + 1, printed
    for block, lines in zip(blocks, expected, strict=False):
        assert [line for line in lines if line not in block] == [], block
    assert (tmp_path / "charges.txt").read_text().splitlines() == ["charged 500 for order 7", "charged 700 for order 8"]
    assert len(list(tmp_path.glob("charge-*"))) == 1


@pytest.mark.parametrize("page", PAGES)
def test_every_answer_that_a_tutorial_names_has_a_page(page: str) -> None:
    named = re.findall(r"urn:retrysafe:problem:([a-z-]+)", (ROOT / "docs" / "tutorial" / page).read_text())
    assert named
    assert [each for each in named if not (ROOT / "docs" / "problems" / f"{each}.md").exists()] == []
