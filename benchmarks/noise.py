"""Who else used the machine meanwhile. Without that a bad figure on a shared machine cannot be told from a bad change.

Linux only; elsewhere everything is zero and nothing is said.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def everybody() -> float:
    """CPU seconds the whole machine has spent at work, what a hypervisor gave to others included."""
    try:
        user, nice, system, _idle, _wait, irq, soft, steal, *_ = (
            (PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
        )
    except (OSError, ValueError):
        return 0.0
    return sum(map(int, (user, nice, system, irq, soft, steal))) / TICK


def family(pid: int) -> float:
    """CPU seconds of a process, its descendants, and those of them that have ended and been waited for."""
    spent, children = _processes()
    total, waiting = 0.0, [pid]
    while waiting:
        each = waiting.pop()
        total += spent.get(each, 0.0)
        waiting += children[each]
    return total


def _processes() -> tuple[dict[int, float], dict[int, list[int]]]:
    spent: dict[int, float] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for folder in PROC.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(folder.name)
        spent[pid] = sum(map(int, fields[11:15])) / TICK
        children[int(fields[1])].append(pid)
    return spent, children


def threads_of(pid: int) -> float:
    """CPU seconds of one living process, from the scheduler's own clock: fine enough for a short slice."""
    total = 0
    for each in (PROC / str(pid) / "task").glob("*/schedstat"):
        try:
            total += int(each.read_text().split()[0])
        except (OSError, ValueError):
            continue
    return total / 1e9


class Watch:
    """What others used since it was made, in cores."""

    def __init__(self) -> None:
        self._at = self._now()

    def foreign(self) -> float:
        wall, all_, ours = (after - before for after, before in zip(self._now(), self._at, strict=True))
        return max(0.0, (all_ - ours) / wall) if wall else 0.0

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), everybody(), family(os.getpid())
