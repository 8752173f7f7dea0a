"""Where the time of a request goes: `python -m benchmarks.profiling [KIND] [STORE_URL] [new|replay|none]`.

Calls the FastAPI application of the web part in process, without sockets, and shares the time out among packages:
a figure that is missed is missed somewhere. KIND is `ours-model` (the default), `ours-edge-plain`, `bare-model` or
`bare-plain`.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import time
from collections import Counter
from itertools import count
from pathlib import PurePath
from typing import Any

from benchmarks.apps.fastapi_app import KINDS
from benchmarks.in_process import call

CALLS, TOP = 2_000, 25


async def calls(app: Any, kind: str, profile: cProfile.Profile) -> float:
    """Microseconds of processor per request, without the profiler; then the same under it."""
    numbers = count()

    async def one() -> None:
        number = next(numbers)
        status = await call(app, None if kind == "none" else "replayed" if kind == "replay" else f"key-{number}")
        assert status == 201, f"answered {status}"

    await one()
    began = time.process_time()
    for _ in range(CALLS):
        await one()
    plain = 1e6 * (time.process_time() - began) / CALLS
    profile.enable()
    for _ in range(CALLS):
        await one()
    profile.disable()
    return plain


def package(file: str) -> str:
    """Whose code it is: `retrysafe.web`, `fastapi`, `asyncio`; what is written in C belongs to nobody."""
    parts = PurePath(file.removesuffix(".py")).parts
    for place in ("site-packages", "src"):
        if place in parts:
            inside = parts[parts.index(place) + 1 :]
            return ".".join(inside[: 2 if inside[0] == "retrysafe" else 1])
    return parts[-2] if len(parts) > 2 and parts[-2] in ("asyncio", "json") else "python" if len(parts) > 1 else "in C"


def shares(stats: pstats.Stats) -> Counter[str]:
    found: Counter[str] = Counter()
    for (file, _line, _name), (_calls, _all, own, _cumulated, _callers) in stats.stats.items():  # type: ignore[attr-defined]  # not in the stubs
        found[package(file)] += own
    return found


def main() -> None:
    kind, url, which = [*sys.argv[1:], *("ours-model", "memory://", "new")[len(sys.argv) - 1 :]]
    profile = cProfile.Profile(time.process_time)  # waiting for the clock is nobody's work
    plain = asyncio.run(calls(KINDS[kind](url), which, profile))
    stats = pstats.Stats(profile)
    print(f"{kind}, {which}: {plain:.0f} us of processor per request; under the profiler, by package:")
    found = shares(stats)
    for name, seconds in found.most_common(14):
        print(f"  {name:<24} {100 * seconds / found.total():5.1f} %")
    stats.sort_stats("tottime").print_stats(TOP)


if __name__ == "__main__":
    main()
