"""A program that stops itself (SIGSTOP) at a chosen boundary, and the nursery it is forked from.

    python -m tests.faults.frozen_story

reads one JSON command per line: `{"do": "start", "cases": [...]}` forks a child for each case and waits until each of
them has stopped or ended; `{"do": "go on", "pids": [...]}` continues them and waits for their end. One line of JSON
comes back, a list with what became of each.

A boundary is before and after each operation that goes to the store, before and after each transaction of the user's,
before a function is called, before the last look at the lease, and on both sides of each effect. Effects are lines of
one file, opened to append: what somebody else's system would have seen, in the order in which it saw it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import psycopg

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.core.ops import Op, Renew, Stats
from retrysafe.engine.aperform import AsyncPerformer
from retrysafe.engine.perform import Performer
from retrysafe.errors import RetrySafeError
from retrysafe.operations import Undo, operation, perform
from retrysafe.stores.wrappers import AsyncStoreWrapper, StoreWrapper
from retrysafe.worker.completer import Completer

LEASE = 3.0
TIMEOUT = 0.5
ROOM = 0.5
"""Seconds a lease is longer than the longest call; five in production."""


class Boundaries:
    """Counts what the story passes, and stops the process at one of them. Heartbeats are not counted: they come by the
    clock."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.stop: int | str = 0
        """Its number, or its name: the first that is called so."""
        self.armed = False
        self.tell: Callable[[str], None] = print

    def __call__(self, name: str) -> None:
        if not self.armed or threading.current_thread() is not threading.main_thread():
            return
        self.names.append(name)
        if self.stop in (len(self.names), name):
            self.stop = 0
            self.tell(name)
            os.kill(os.getpid(), signal.SIGSTOP)


boundary = Boundaries()


# Where the boundaries are ------------------------------------------------------------------------


class Bounded(StoreWrapper):
    def execute(self, op: Op[Any]) -> Any:
        boundary(f"before {type(op).__name__}")
        reply = super().execute(op)
        boundary(f"after {type(op).__name__}")
        return reply


class AsyncBounded(AsyncStoreWrapper):
    async def execute(self, op: Op[Any]) -> Any:
        beat = isinstance(op, Renew) and asyncio.current_task() is not MAIN[0]
        if not beat:
            boundary(f"before {type(op).__name__}")
        reply = await super().execute(op)
        if not beat:
            boundary(f"after {type(op).__name__}")
        return reply


MAIN: list[asyncio.Task[Any] | None] = [None]


def instrument() -> None:
    operation.RENEWAL_MARGIN_SECONDS = ROOM
    look = perform.begin_call

    def looked(lease: Any, call: Any) -> Any:
        boundary("before the last look")
        return look(lease, call)

    perform.begin_call = looked
    around(Performer, "_invoke", "Invoke")
    around(perform.OperationPerformer, "_transact", "Transact")
    around(AsyncPerformer, "_invoke", "Invoke")
    around(perform.AsyncOperationPerformer, "_transact", "Transact")


def around(owner: type, name: str, what: str) -> None:
    inner = getattr(owner, name)

    def called(self: Any, effect: Any) -> Any:
        boundary(f"before {what}")
        done = inner(self, effect)
        boundary(f"after {what}")
        return done

    async def awaited(self: Any, effect: Any) -> Any:
        boundary(f"before {what}")
        done = await inner(self, effect)
        boundary(f"after {what}")
        return done

    setattr(owner, name, awaited if inspect.iscoroutinefunction(inner) else called)


# What is stopped ---------------------------------------------------------------------------------


class Provider:
    """Somebody else's system, as a file of effects: recognises a key it has seen, and keeps every request."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.path, self.role = case["log"], case["role"]
        self.refuses = case["refuses"]

    def effect(self, step: str, item: str, key: str) -> str:
        boundary(f"gap {step}")
        if step == "ship" and self.refuses and key not in self.seen():
            raise Undo(409, {"undone": item})
        line = {"item": item, "role": self.role, "step": step, "key": key, "at": time.monotonic()}
        out = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(out, (json.dumps(line) + "\n").encode())
        os.close(out)
        boundary(f"sent {step}")
        return f"{step} of {item}"

    def seen(self) -> set[str]:
        return {line["key"] for line in effects(self.path)}


def effects(path: str) -> list[dict[str, Any]]:
    if not os.path.exists(path):
        return []
    with open(path) as lines:
        return [json.loads(line) for line in lines]


def coloured(colour: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if colour == "sync":
        return function

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        return await made if inspect.isawaitable(made) else made

    return awaited


def declare(safe: RetrySafe, case: dict[str, Any]) -> Callable[[], Any]:
    """What to run: an operation with steps of every kind, or a guarded function."""
    provider, colour, item = Provider(case), case["colour"], case["key"]
    if case["what"] != "saga":
        policy = Policy(lease=LEASE, abandoned=case["what"], busy="conflict")

        def send(item: str) -> str:
            return provider.effect("send", item, item)

        send.__module__ = "tests.faults.frozen_story"  # also where this is the main module: the name is compared
        once = safe.once("send:{item}", scope="frozen", policy=policy)(coloured(colour, send))
        return lambda: once(item)
    op = safe.operation("saga", policy=Policy(lease=LEASE, failures="release"))
    foreign = functools.partial(declare_foreign, op, provider, colour)
    quote = foreign("quote", undo=True)
    charge = foreign("charge", repeatable=False)
    ship = foreign("ship", undo=True)
    reserve, note = (declare_local(op, case, name) for name in ("reserve", "note"))
    steps = [reserve, quote, charge, note, ship]

    def body(item: str) -> Answer:
        return Answer(201, {"done": [step(item) for step in steps]})

    async def abody(item: str) -> Answer:
        return Answer(201, {"done": [await step(item) for step in steps]})

    op.body(body if colour == "sync" else abody)
    return lambda: op(item, key=item)


def declare_foreign(op: Any, provider: Provider, colour: str, name: str, *, undo: bool = False, **options: Any) -> Any:
    def step(item: str, *, key: str) -> str:
        return provider.effect(name, item, key)

    def take_back(item: str, *, key: str) -> None:
        provider.effect(f"undo {name}", item, key)

    step.__name__ = name
    if undo:
        options["undo"] = coloured(colour, take_back)
    return op.foreign(timeout=TIMEOUT, **options)(coloured(colour, step))


def declare_local(op: Any, case: dict[str, Any], name: str) -> Any:
    server, rows = case["store"] == "postgres", case["rows"]
    mark = "%s" if server else "?"

    def step(tx: Any, item: str) -> Any:
        if server:  # in a file the open transaction keeps everybody else out
            boundary(f"in {name}")
        return nothing(tx.execute(f"INSERT INTO {rows} (item, step) VALUES ({mark}, {mark})", (item, name)))

    def take_back(tx: Any, item: str) -> Any:
        return nothing(tx.execute(f"DELETE FROM {rows} WHERE item = {mark} AND step = {mark}", (item, name)))

    step.__name__ = name
    return op.local(undo=coloured(case["colour"], take_back))(coloured(case["colour"], step))


def nothing(made: Any) -> Any:
    """The result of a statement is nobody's; on a loop it is awaited all the same."""

    async def awaited() -> None:
        await made

    return awaited() if inspect.isawaitable(made) else None


def transactions(case: dict[str, Any]) -> Any:
    """On the store's own database; Redis has none, so its local steps leave receipts in a file."""
    database = case["database"]
    if case["store"] != "postgres":
        return database
    return (
        (lambda: psycopg.AsyncConnection.connect(database))
        if case["colour"] == "async"
        else lambda: psycopg.connect(database)
    )


def opened(case: dict[str, Any]) -> RetrySafe:
    """By its URL, for that says whose tables they are; and then with the boundaries around it."""
    safe = RetrySafe(case["url"], tx=transactions(case))
    safe._sync, safe._async = Bounded(safe.store), AsyncBounded(safe.async_store)
    return safe


def child(case: dict[str, Any]) -> dict[str, Any]:
    boundary.stop = case["stop"]
    if case["colour"] == "async":
        return asyncio.run(astory(case))
    safe = opened(case)
    run = declare(safe, case)
    safe.execute(Stats())  # connected, its tables made: not counted
    boundary.armed = True
    if case["role"] == "worker":
        return {"answer": list(Completer(safe, grace=0, backoff=lambda attempt: 0.0).run_once())}
    try:
        return {"answer": plain(run())}
    except RetrySafeError as error:
        return {"error": type(error).__name__, "why": str(error)}


async def astory(case: dict[str, Any]) -> dict[str, Any]:
    safe = opened(case)
    run = declare(safe, case)
    MAIN[0] = asyncio.current_task()
    await safe.aexecute(Stats())
    boundary.armed = True
    if case["role"] == "worker":
        completer = Completer(safe, grace=0, backoff=lambda attempt: 0.0)
        return {"answer": list(await asyncio.to_thread(completer.run_once))}
    try:
        return {"answer": plain(await run())}
    except RetrySafeError as error:
        return {"error": type(error).__name__, "why": str(error)}


def plain(answer: Any) -> Any:
    return [answer.status, answer.json()] if isinstance(answer, Answer) else answer


# The nursery -------------------------------------------------------------------------------------


class Child:
    """One forked process, and the pipe on which it tells."""

    def __init__(self, case: dict[str, Any]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            boundary.tell = lambda name: tell(writing, {"stopped": name})
            try:
                told = child(case)
            except BaseException:
                told = {"broken": traceback.format_exc()}
            tell(writing, {**told, "boundaries": boundary.names, "imported": sorted(sys.modules)})
            os._exit(0)
        os.close(writing)
        self.pipe = os.fdopen(reading)

    def wait(self) -> dict[str, Any]:
        """Until it has stopped itself, or ended: a signal, and no guess."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        told: dict[str, Any] = {"pid": self.pid, **json.loads(self.pipe.readline())}
        if not os.WIFSTOPPED(status):
            self.pipe.close()
        for name in told.pop("imported", ()):  # what one child needed the next ones find here: most of their time
            if name not in sys.modules:
                importlib.import_module(name)
        return told

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def tell(pipe: int, what: dict[str, Any]) -> None:
    line = (json.dumps(what) + "\n").encode()
    while line:
        line = line[os.write(pipe, line) :]


def main() -> None:
    instrument()
    living: dict[int, Child] = {}
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "start":
            children = [Child(case) for case in command["cases"]]
        else:
            children = [living.pop(pid) for pid in command["pids"]]
            for each in children:
                each.go_on()
        told = [each.wait() for each in children]
        living |= {each.pid: each for each, end in zip(children, told, strict=True) if "stopped" in end}
        print(json.dumps(told), flush=True)
    for each in living.values():
        os.kill(each.pid, signal.SIGKILL)
        os.waitpid(each.pid, 0)


if __name__ == "__main__":
    main()
