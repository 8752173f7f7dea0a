"""A newcomer's path from a clean environment: README, demo, own API, a crash, the key looked at and resolved, an
operation that resumes, the worker, the metrics.

An environment has the built wheel and what the pages say to install, and nothing else. Every file and every command is
copied from the pages as they are now, and typed into a bash in an empty folder. After each `sh` block, the lines of the
`console` block that follows must be in what the commands printed. Three things differ from the pages: ports are free
ones, `retrysafe demo` runs in the background, and instead of `sleep` the test repeats what follows until it prints what
the page says.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tools.bootstrap import UV, build_uv_environ

from tests.servers.lazy import missing
from tests.servers.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(sh|console|python title="(\S+)")\n(.*?)^```', re.MULTILINE | re.DOTALL)
PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=--port )\d+")
END = "=== end of command"
PATIENCE = 120.0
"""Seconds for a program to answer, on a machine that does ten other things."""
LONGEST_VISIT = 600.0
"""Seconds after which a terminal is closed, so that a command that hangs ends the test."""


class Block(NamedTuple):
    commands: list[str]
    expected: list[str]
    """Lines that the page shows below the commands."""

    def list_missing(self, printed: str) -> list[str]:
        return [line for line in self.expected if line not in printed]


class Page(NamedTuple):
    files: dict[str, str]
    blocks: list[Block]


def read_page(name: str) -> Page:
    """The titled files of a page, and its commands. Lines that end with a backslash are joined."""
    files: dict[str, str] = {}
    blocks: list[Block] = []
    for kind, title, text in BLOCK.findall((ROOT / name).read_text()):
        if title:
            files[title] = text
        elif kind == "sh":
            blocks.append(Block(text.replace("\\\n", " ").splitlines(), []))
        else:
            blocks[-1].expected.extend(text.splitlines())
    return Page(files, blocks)


class Environment:
    """A virtual environment that has only what `pip install` of a page puts into it."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._python, self._wheel = folder / "bin" / "python", wheel
        run_uv("venv", "-q", "--python", sys.executable, str(folder))
        commands = f"{self._python.parent}:/usr/local/bin:/usr/bin:/bin"
        self.variables = {"PATH": commands, "HOME": str(folder), "LANG": "C.UTF-8"}

    def install(self, packages: list[str]) -> None:
        """Our wheel with the extras that the page names; the rest in the versions of the lock."""
        ours = rf"retrysafe\1 @ {self._wheel.as_uri()}"
        wanted = [re.sub(r"^retrysafe(\[.*\])?$", ours, each) for each in packages]
        locked = ("-c", str(ROOT / "requirements" / "test.lock"))
        run_uv("pip", "install", "-q", "--python", str(self._python), *locked, *wanted)


def run_uv(*arguments: str) -> None:
    """Run uv from its cache alone if that has everything, which takes no network."""
    for offline in (["--offline"], []):
        command = [str(UV), *arguments, *offline]
        done = subprocess.run(command, env=build_uv_environ(), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
    missing(f"a clean environment: {done.stderr.strip()[-500:]}")


class Terminal:
    """A bash in a folder, and a newcomer who types what the pages say."""

    def __init__(self, shell: subprocess.Popen[str], folder: Path, environment: Environment) -> None:
        self._shell, self._environment = shell, environment
        self.folder = folder
        self.ports: dict[str, str] = {}
        """By the port that a page names: the one that is used here."""

    def follow(self, page: Page) -> None:
        for name, text in page.files.items():
            (self.folder / name).write_text(text)
        for block in page.blocks:
            self.run_block(block)

    def run_block(self, block: Block) -> None:
        pause = next((at for at, command in enumerate(block.commands) if command.startswith("sleep ")), None)
        printed = self.run(*block.commands[:pause])
        if pause is not None:
            said: list[str] = []

            def prints_it() -> bool:
                said.append(self.run(*block.commands[pause + 1 :]))
                return block.list_missing(said[-1]) == []

            until(prints_it, PATIENCE, f"{block.expected} from {block.commands}")
            printed += said[-1]
        assert block.list_missing(printed) == [], printed

    def run(self, *commands: str) -> str:
        """Type commands; return what they printed."""
        return "".join(self._run_one(PORT.sub(self._choose_port, command)) for command in commands)

    def _choose_port(self, found: re.Match[str]) -> str:
        return self.ports.setdefault(found[0], str(free_port()))

    def _run_one(self, command: str) -> str:
        if command.startswith("pip install"):
            self._environment.install(shlex.split(command, comments=True)[2:])
            return ""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{command}\nprintf '\\n{END} %s\\n' \"$!\"\n")  # one write: servers print here too
        self._shell.stdin.flush()
        lines = []
        while (line := self._shell.stdout.readline()) and not line.startswith(END):
            lines.append(line)
        assert line, f"the terminal ended in {command}:\n{''.join(lines)}"
        if command.endswith(" &"):
            self._wait_for_server(command, int(line.removeprefix(END)))
        return "".join(lines)

    def _wait_for_server(self, command: str, pid: int) -> None:
        """Wait until the process that was just started listens on the one port that its command names."""
        port = int(*PORT.findall(command))
        until(lambda: is_open(port) or not is_running(pid), PATIENCE, command)
        assert is_running(pid), f"{command} has ended:\n{self._run_one('')}"


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def open_terminal(folder: Path, environment: Environment) -> Iterator[Terminal]:
    """Whatever was started there ends with it."""
    folder.mkdir(exist_ok=True)
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile"], cwd=folder, env=environment.variables, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    closing = threading.Timer(LONGEST_VISIT, os.killpg, (shell.pid, signal.SIGKILL))
    closing.start()
    try:
        with shell:
            yield Terminal(shell, folder, environment)
            os.killpg(shell.pid, signal.SIGKILL)
    finally:
        closing.cancel()


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
    (built,) = (tmp_path / "dist").glob("*.whl")
    return built


def test_the_path_of_a_newcomer(wheel: Path, tmp_path: Path) -> None:
    own = Environment(tmp_path / "own", wheel)
    with open_terminal(tmp_path / "readme", own) as terminal:
        read_the_readme(terminal)
    with open_terminal(tmp_path / "demo", Environment(tmp_path / "for-demo", wheel)) as terminal:
        see_the_demo(terminal)
    with open_terminal(tmp_path / "shop", own) as terminal:
        protect_an_api(terminal)
        crash_it_and_resolve_it(terminal)


def read_the_readme(terminal: Terminal) -> None:
    """Install, save, serve, and send the `curl` twice."""
    page = read_page("README.md")
    assert set(page.files) == {"app.py"}
    install, serve = page.blocks
    terminal.follow(Page(page.files, [install, Block(serve.commands[:-1], [])]))
    first, again = (terminal.run(serve.commands[-1]) for _ in range(2))
    assert "HTTP/1.1 201" in first
    assert "idempotent-replayed" not in first
    assert "idempotent-replayed: true" in again
    assert '{"charged":500}' in first
    assert '{"charged":500}' in again


def see_the_demo(terminal: Terminal) -> None:
    """Install and start it, pay twice without the page, and get a webhook twice."""
    commands = [command for block in read_page("docs/tutorial/demo.md").blocks for command in block.commands]
    in_a_clone = [command for command in commands if command.startswith("make ") or "--store" in command]
    install, demo, pay, parcels, resend, _ = [command for command in commands if command not in in_a_clone]
    terminal.run(install, f"{demo} --port 8000 &")
    url = f"http://127.0.0.1:{terminal.ports['8000']}"
    pay_until_it_is_paid(terminal, pay)
    assert "idempotent-replayed: true" in terminal.run(pay)
    assert len(read_json(f"{url}/provider/charges")) == 1
    assert "Play all" in httpx.get(url, timeout=PATIENCE).text
    until(lambda: "order" in terminal.run(parcels), PATIENCE, "the first webhook")
    shipped = terminal.run(parcels)
    assert '"resent":1' in terminal.run(resend)
    until(lambda: read_json(f"{url}/provider/events")[0]["tries"] >= 2, PATIENCE, "the second webhook")
    assert terminal.run(parcels) == shipped


def pay_until_it_is_paid(terminal: Terminal, pay: str) -> None:
    """On a busy machine the provider may answer too late. The client gets a 5xx, and sends the same key again."""
    printed: list[str] = []

    def is_paid() -> bool:
        printed.append(terminal.run(pay))
        assert "idempotent-replayed" not in printed[-1]
        return "201 Created" in printed[-1]

    until(is_paid, PATIENCE, "a payment")


def read_json(url: str) -> Any:
    return httpx.get(url, timeout=PATIENCE).json()


def protect_an_api(terminal: Terminal) -> None:
    terminal.follow(read_page("docs/tutorial/your-api.md"))
    assert read_charges(terminal) == ["charged 500 for order 7"]


def crash_it_and_resolve_it(terminal: Terminal) -> None:
    terminal.follow(read_page("docs/tutorial/crash-it.md"))
    assert read_charges(terminal) == ["charged 500 for order 7", "charged 700 for order 8"]
    assert len(list(terminal.folder.glob("charge-*"))) == 2


def read_charges(terminal: Terminal) -> list[str]:
    return (terminal.folder / "charges.txt").read_text().splitlines()
