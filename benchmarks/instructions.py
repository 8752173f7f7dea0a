"""Instructions and Python calls of one request, and of one claim with its completion.

    python -m benchmarks instructions                      # all of them, about a quarter of an hour
    python -m benchmarks.instructions redis edge new       # one case; the store may also be `bare`
    python -m benchmarks.instructions frameworks Flask     # one framework's own way, or all of them

The applications of the web part are called in process, without sockets, on uvloop, CALLERS requests at a time. `edge`
is the middleware in front of the application, `inside` the README's way on a FastAPI application with a pydantic
model, `dependency` the same as a dependency. Each is compared with the same application without retrysafe. `new` is a
new key each time, `replay` many keys in turn,
`hot` one key for all callers, `none` no key. callgrind.py says what is counted, and what is inaccurate.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from types import FrameType
from typing import Any, NamedTuple

from benchmarks.callgrind import count_child, measure
from benchmarks.harness import Pace
from benchmarks.in_process import call
from benchmarks.machines import Machines, machines
from benchmarks.ours import async_pairs
from benchmarks.tables import Table
from retrysafe.core.speedups import STATUS

CALLERS, WARM, KEYS = 32, 128, 64
PIECES = {"quick": 16, "default": 96, "full": 384}
COUNTED_CALLS = 16
WHICH = ("new", "replay", "hot", "none")
APPS = {
    "edge": ("bare-plain", "ours-edge-plain"),
    "inside": ("bare-model", "ours-model"),
    "dependency": ("bare-model", "ours-dependency"),
}
"""The application without retrysafe, and with it."""
FRAMEWORK_NAMES = ("FastAPI", "Starlette", "Litestar", "Quart", "Flask", "Django")
FRAMEWORK_CASES = ("new", "replay", "none")
WEB_STORES = ("Redis", "PostgreSQL", "SQLite")
PAIR_STORES = (*WEB_STORES, "MySQL", "MariaDB", "MongoDB")
GOALS = {
    ("edge", "new", "Redis"): 1.75, ("edge", "new", "PostgreSQL"): 1.95, ("edge", "new", "SQLite"): 2.1,
    **{("edge", which, store): 0.65 for which in ("replay", "hot") for store in WEB_STORES},
    **{("inside", "new", store): 1.6 for store in WEB_STORES},
    **{("inside", which, store): 1.4 for which in ("replay", "hot") for store in WEB_STORES},
    **{("inside", "none", store): 1.05 for store in WEB_STORES},
}  # fmt: skip


class Cost(NamedTuple):
    """Of one piece of work. `calls` are Python functions, `own` those of retrysafe; with one caller."""

    instructions: float
    calls: int
    own: int

    def __str__(self) -> str:
        return f"{self.instructions / 1000:.0f}"


def instructions(at: Machines, pace: Pace) -> list[Table]:
    pieces = PIECES[pace.label]
    places = [request_table(at, place, pieces) for place in APPS]
    tables = [*places, framework_table(at, pieces), pair_table(at, pieces)]
    for table in tables:
        table.notes.append(f"retrysafe-speedups: {STATUS}")
    return tables


def url_of(at: Machines, store: str, name: str) -> str:
    """Redis without its log on disk and SQLite on a file: the server's work is not counted, so neither matters."""
    places: dict[str, Callable[[], str]] = {
        "Redis": lambda: at.redis_memory,
        "PostgreSQL": lambda: at.postgres,
        "MySQL": lambda: at.mysql,
        "MariaDB": lambda: at.mariadb,
        "MongoDB": lambda: at.mongo,
        "SQLite": lambda: "sqlite:///" + at.sqlite(name),
    }
    return places[store]()


def request_table(at: Machines, place: str, pieces: int) -> Table:
    bare, protected = APPS[place]
    base = cost_of(bare, "new", "-", pieces)
    titles = {"edge": "in front of the application", "inside": "inside FastAPI, with a pydantic model"}
    title = titles.get(place, "inside FastAPI, as a dependency")
    table = Table(f"instructions-{place}", f"Instructions per request, {title}", "")
    table.heads = ["store", "request", "thousand instructions", "against bare", "asked", "Python calls", "in retrysafe"]
    table.cells.append(["none", "bare", str(base), "1.00", "", str(base.calls), ""])
    for store in WEB_STORES:
        for which in WHICH:
            found = cost_of(protected, which, url_of(at, store, f"{place}-{which}"), pieces)
            asked = GOALS.get((place, which, store))
            cells = [store, which, str(found), f"{found.instructions / base.instructions:.2f}"]
            table.cells.append([*cells, f"{asked:.2f}" if asked else "", str(found.calls), str(found.own)])
            print("  ".join(table.cells[-1]), file=sys.stderr, flush=True)
    return table


def framework_table(at: Machines, pieces: int) -> Table:
    """Each framework's own way against its bare application, on Redis."""
    table = Table("instructions-frameworks", "Instructions per request in each framework's own way, Redis", "")
    table.heads = ["framework", "bare, thousand instructions", *FRAMEWORK_CASES]
    for name in FRAMEWORK_NAMES:
        table.cells.append(framework_row(at, name, pieces))
        print("  ".join(table.cells[-1]), file=sys.stderr, flush=True)
    return table


def framework_row(at: Machines, name: str, pieces: int) -> list[str]:
    base = cost_of(f"in:{name}", "new", "-", pieces)
    url = url_of(at, "Redis", "frameworks")
    found = [cost_of(f"in:{name}", which, url, pieces) for which in FRAMEWORK_CASES]
    return [name, str(base), *(f"{one.instructions / base.instructions:.2f}" for one in found)]


def pair_table(at: Machines, pieces: int) -> Table:
    table = Table("instructions-pairs", "Instructions of a claim and its completion, the client's share", "")
    table.heads = ["store", "thousand instructions", "Python calls", "in retrysafe"]
    for store in PAIR_STORES:
        found = cost_of("pair", "new", url_of(at, store, "pairs"), pieces)
        table.cells.append([store, str(found), str(found.calls), str(found.own)])
        print("  ".join(table.cells[-1]), file=sys.stderr, flush=True)
    return table


def cost_of(kind: str, which: str, url: str, pieces: int) -> Cost:
    child = ["--child", kind, which, url, str(pieces)]
    counted, printed = count_child("benchmarks.instructions", child, pieces)
    calls, own = printed.split()
    return Cost(counted, int(calls), int(own))


# In the process that is counted -------------------------------------------------------------------


async def run_child(kind: str, which: str, url: str, pieces: int) -> None:
    if kind == "pair":
        async with async_pairs(url, batching=True) as pair:
            await count_work(pair, pieces)
        return
    send, numbers = open_application(kind, url), count()

    async def request() -> None:
        number = next(numbers)
        keys = {"new": f"{os.getpid()}-{number}", "replay": f"key-{number % KEYS}", "hot": "hot", "none": None}
        status = await send(keys[which])
        assert status in (201, 409), f"answered {status}"  # while a hot key's first request runs

    await count_work(request, pieces)


def open_application(kind: str, url: str) -> Callable[[str | None], Awaitable[int]]:
    """A function that sends one request to the application. Another framework's name stands after a colon."""
    if kind.startswith("in:"):
        from benchmarks.apps.frameworks import FRAMEWORKS, call_framework

        name = kind.removeprefix("in:")
        return partial(call_framework, name, FRAMEWORKS[name](None if url == "-" else url))
    from benchmarks.apps.fastapi_app import KINDS

    return partial(call, KINDS[kind](url))


async def count_work(work: Callable[[], Awaitable[None]], pieces: int) -> None:
    async def run(many: int) -> None:
        left = iter(range(many))

        async def caller() -> None:
            for _ in left:
                await work()

        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    await run(WARM)
    await measure(run, pieces)
    total, own = await count_calls(work)
    print(total, own)


async def count_calls(work: Callable[[], Awaitable[None]]) -> tuple[int, int]:
    """Python calls of one piece, and those of them that are written in retrysafe. Threads that run already are not
    seen, so the writer thread of SQLite is not."""
    total = own = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal total, own
        if event == "call":
            total += 1
            own += "retrysafe" in frame.f_globals.get("__name__", "")

    threading.setprofile(note)
    sys.setprofile(note)
    for _ in range(COUNTED_CALLS):
        await work()
    sys.setprofile(None)
    return total // COUNTED_CALLS, own // COUNTED_CALLS


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("case", nargs="*", help="STORE [edge|inside|pair] [new|replay|hot|none]")
    parser.add_argument("--pieces", type=int, default=PIECES["default"])
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        import uvloop

        kind, which, url, pieces = given.child
        return uvloop.run(run_child(kind, which, url, int(pieces)))
    store, place, which = [*given.case, *("redis", "edge", "new")[len(given.case) :]]
    stores = {name.lower(): name for name in PAIR_STORES} | {"postgres": "PostgreSQL"}
    with machines() as at:
        if store == "frameworks":
            for name in given.case[1:] or FRAMEWORK_NAMES:
                print("  ".join(framework_row(at, name, given.pieces)), flush=True)
            return None
        if store == "bare":
            found = cost_of(APPS[place][0], which, "-", given.pieces)
        else:
            kind = "pair" if place == "pair" else APPS[place][1]
            found = cost_of(kind, which, url_of(at, stores[store], "one"), given.pieces)
    print(f"{store} {place} {which}: {found} k instructions, {found.calls} Python calls, {found.own} of ours")
    return None


if __name__ == "__main__":
    main()
