"""The README's first API and its `curl` work as they stand, and the README stays short."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import httpx

from tests import waiting

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def block(start: str) -> str:
    found = re.search(rf"^```{re.escape(start)}(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def free_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def test_the_curl_works_against_the_snippet(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(block('python title="app.py"\n'))
    port = free_port()
    serve, curl = block("sh\nuvicorn").replace("8000", port).strip().splitlines()
    arguments = shlex.split(serve.removesuffix("&"))
    server = subprocess.Popen([sys.executable, "-m", "uvicorn", *arguments], cwd=tmp_path)
    try:
        waiting.until(lambda: is_open(int(port)), 60, "the server of the README")
        send = shlex.split(curl)
        first, again = (subprocess.run(send, capture_output=True, text=True, check=True).stdout for _ in range(2))
    finally:
        server.terminate()
        server.wait(30)
    assert first.startswith("HTTP/1.1 201")
    assert "idempotent-replayed" not in first
    assert "idempotent-replayed: true" in again
    assert first.splitlines()[-1] == again.splitlines()[-1] == '{"charged":500}'


def is_open(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/openapi.json", timeout=1)
    except httpx.TransportError:
        return False
    return True


def test_the_install_line_comes_before_the_code() -> None:
    assert README.index("pip install") < README.index("```python")


def test_the_readme_fits_in_a_screen_and_a_half() -> None:
    assert len(README.splitlines()) <= 110


def test_the_figures_name_commands_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert {"demo", "test", "proof-stores", "bench", "docs-serve"} <= named
    assert named <= targets
