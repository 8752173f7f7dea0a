"""Releases as processes: unpacked once, started once, asked again and again.

`Release.at(url)` is a place in a store as that release sees it. Each release is two processes: a steady one, which
keeps its stores open as a server does, and a nursery, which forks those that die.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.releases import wire

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
OLD = "06229ac"
"""The oldest release that must run beside this one."""

DEADLINE = 300.0
"""Only for a child that hangs."""


class Failed(AssertionError):
    """The process said something that no test expects."""


def unpacked(revision: str, folder: Path) -> Path:
    """The folder to put on a path for that release."""
    with tarfile.open(HERE / f"{revision}.tar.xz") as kept:
        if hasattr(tarfile, "data_filter"):
            kept.extractall(folder, filter="data")
        else:  # Python 3.11 before 3.11.4; the file is our own
            kept.extractall(folder)
    return folder


class Process:
    """One child. A line out, a line in."""

    def __init__(self, source: Path) -> None:
        path = {"PYTHONPATH": str(source), "PYTHONHASHSEED": "0"}
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._child = subprocess.Popen(
            [sys.executable, str(HERE / "child.py")],
            env={**inherited, **path},
            cwd=source,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.file = self.ask({"do": "hello"})["file"]

    def ask(self, command: dict[str, Any]) -> Any:
        self.send(command)
        return self.told()

    def send(self, command: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write((wire.dump(command) + "\n").encode())
        self._child.stdin.flush()

    def told(self) -> Any:
        assert self._child.stdout is not None
        ready, _, _ = select.select([self._child.stdout], [], [], DEADLINE)
        assert ready, f"a child said nothing for {DEADLINE:.0f} s"
        answer = wire.load(self._child.stdout.readline() or '{"failed": "it ended"}')
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer["ok"]

    def end(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()


class Release:
    """A release that is running."""

    def __init__(self, name: str, source: Path) -> None:
        self.name = name
        self.source = source
        self._steady: Process | None = None
        self._nursery: Process | None = None

    @property
    def steady(self) -> Process:
        if self._steady is None:
            self._steady = self._started()
        return self._steady

    @property
    def nursery(self) -> Process:
        if self._nursery is None:
            self._nursery = self._started()
        return self._nursery

    def _started(self) -> Process:
        made = Process(self.source)
        # An editable install is on every path: without this a test could compare a release with itself.
        assert Path(made.file).is_relative_to(self.source), f"{self.name} runs {made.file}, not {self.source}"
        return made

    def at(self, url: str, **more: Any) -> At:
        return At(self, {"url": url, **more})

    def end(self) -> None:
        for process in (self._steady, self._nursery):
            if process is not None:
                process.end()

    def __repr__(self) -> str:
        return self.name


class At:
    """A place in a store, as one release sees it. `more` goes with every command: `sealed`, `ledger`, `tx`."""

    def __init__(self, release: Release, more: dict[str, Any]) -> None:
        self.release = release
        self._more = more

    def __call__(self, do: str, **given: Any) -> Any:
        return self.release.steady.ask({"do": do, **self._more, **given})

    def begin(self, do: str, **given: Any) -> None:
        """The same without waiting for its end, which `ended` does."""
        self.release.steady.send({"do": do, **self._more, **given})

    def ended(self) -> Any:
        return self.release.steady.told()

    def dying(self, do: str, **given: Any) -> Any:
        """In a process that may not live to say anything: {"signal", "said"}."""
        return self.release.nursery.ask({"do": do, "mortal": True, **self._more, **given})

    def op(self, op: str, **fields: Any) -> Any:
        (reply,) = self("ops", ops=[{"op": op, **fields}])
        return reply

    def ops(self, given: list[dict[str, Any]]) -> list[Any]:
        found: list[Any] = self("ops", ops=given)
        return found

    def call(self, kind: str, key: str, cents: int = 500, **given: Any) -> Any:
        return self("call", kind=kind, key=key, cents=cents, **given)

    def all(self, now: int | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self("all", now=now)
        return found

    def sealed(self) -> At:
        return At(self.release, {**self._more, "sealed": True})

    def traced(self, traceparent: str) -> At:
        """The same in a program whose requests have a trace; a release that does not keep it ignores that."""
        return At(self.release, {**self._more, "traceparent": traceparent})

    def close(self) -> None:
        self("close")
