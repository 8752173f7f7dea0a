"""Instructions of a piece of work, counted by valgrind's callgrind: they hardly move with the machine.

The work runs in a process of its own, which switches the counting on from inside, when imports, connections and caches
are warm. It does a number of pieces, then twice that number; the difference is what that number of pieces costs, and
whatever happens once falls out. All threads of the process count. The servers do not: they are other processes.

Two inaccuracies are known. Valgrind offers no SHA instructions, so hashing counts some 20 thousand instructions too
many per request. And a process is some thirty times slower, so more operations wait together than in real life.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.servers import ServerUnavailable
from tests.servers.debian import package

SOURCE = Path(__file__).with_name("callgrind_switch.c")
SWITCH = "RETRYSAFE_CALLGRIND_SWITCH"
_TOTALS = re.compile(r"(?m)^(?:totals|summary): (\d+)")


class Valgrind:
    """Where valgrind is: the machine's own, or the one of a Debian package (tests/servers/debian.py)."""

    def __init__(self) -> None:
        found = shutil.which("valgrind")
        self.environment: dict[str, str] = {}
        self.include: list[str] = []
        if found is not None:
            self.program = found
            return
        usr = package("bookworm", "valgrind").usr
        self.program = str(usr / "bin" / "valgrind.bin")
        self.environment = {"VALGRIND_LIB": str(usr / "libexec" / "valgrind")}
        self.include = [f"-I{usr / 'include'}"]

    def build_switch(self, folder: Path) -> Path:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise ServerUnavailable("counting instructions needs a C compiler (cc) for a helper of ten lines")
        switch = folder / "callgrind_switch.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", *self.include, str(SOURCE), "-o", str(switch)], check=True)
        return switch


def count_child(
    module: str, arguments: Sequence[str], pieces: int, environment: Mapping[str, str] = os.environ
) -> tuple[float, str]:
    """Run `python -m module arguments …`, which calls `measure` with so many pieces. Returns the instructions of one
    piece, and what the process printed."""
    few, many, printed = count_twice(module, arguments, environment)
    return (many - few) / pieces, printed


def count_twice(
    module: str, arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> tuple[int, int, str]:
    """The instructions of `measure`'s pieces, of twice as many, and what the process printed."""
    valgrind = Valgrind()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counted"
        watch = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", "--quiet"]
        switch = {SWITCH: str(valgrind.build_switch(Path(folder)))}
        settings = {**environment, **valgrind.environment, **switch, "PYTHONHASHSEED": "0"}
        command = [valgrind.program, *watch, sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=settings)
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)} failed: {done.stderr[-3000:]}")
        few, many = (_read_total(out.with_name(f"{out.name}.{number}")) for number in (1, 2))
    return few, many, done.stdout


def _read_total(path: Path) -> int:
    found = _TOTALS.search(path.read_text())
    assert found is not None, f"callgrind wrote no total into {path.name}"
    return int(found.group(1))


async def measure(run: Callable[[int], Awaitable[object]], pieces: int) -> None:
    """In the process that is counted: do `pieces`, then twice as many, with the counting on."""
    switch: Any = ctypes.CDLL(os.environ[SWITCH])
    gc.collect()
    gc.freeze()  # what is there by now is not looked at again, however large it is
    switch.count_begin()
    await run(pieces)
    switch.count_mark()  # writes the total and begins anew at zero
    await run(2 * pieces)
    switch.count_mark()
    switch.count_end()
