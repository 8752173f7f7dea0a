"""Trace which files one request, function call, operation, job or webhook visits.

    python -m tools.walks            write the table of ARCHITECTURE.md anew
    python -m tools.walks --check    fail if the table is stale
    python -m tools.walks --counts   print calls and files of each walk

Each walk runs on a SQLite file, once to warm up (imports, caches, connections) and once under `sys.setprofile`. Only
functions below `src/retrysafe` count. `tests/layers/test_map.py` compares the table with a new trace.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tools import pages

import retrysafe
from retrysafe import Answer, RetrySafe, webhooks
from retrysafe.operations import stage
from retrysafe.testing import asgi_client
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.worker import Worker

PACKAGE = str(Path(retrysafe.__file__).parent) + os.sep
CLIENT = asgi_client.__file__
"""Sends the requests, so it is not on their way."""
PAGE = pages.ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- walks: made by `make pages` -->", "<!-- end of walks -->"

Step = Callable[[str], None]
"""One run of a walk. The argument is a unique name for it: a key, an order, an event."""


class Walk(NamedTuple):
    """What one walk visited."""

    files: tuple[str, ...]
    """In the order of the first visit."""
    calls: int


BACKGROUND = ("retrysafe-heartbeat", "retrysafe-beat")
"""Threads that run on a timer. On a slow machine they would add their files to a walk by chance."""


class Recorder:
    """Records the calls of our functions while `on` is set, in every thread that starts after `install`."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.calls = 0
        self.on = False

    def install(self) -> None:
        threading.setprofile(self.record_call)
        sys.setprofile(self.record_call)

    def remove(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def record_call(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.on or event != "call":
            return
        code = frame.f_code
        if threading.current_thread().name in BACKGROUND:
            return
        if code.co_filename.startswith(PACKAGE) and code.co_name != "<module>" and code.co_filename != CLIENT:
            self.calls += 1
            self.files.setdefault(code.co_filename.removeprefix(PACKAGE).replace(os.sep, "/"))

    def trace(self, step: Callable[[], None]) -> Walk:
        self.files, self.calls = {}, 0
        self.on = True
        try:
            step()
        finally:
            self.on = False
        return Walk(tuple(self.files), self.calls)


# The walks ------------------------------------------------------------------------------------------


class Shop:
    """One application on a SQLite file, with everything that the walks need."""

    def __init__(self, folder: str) -> None:
        self.file = f"{folder}/shop.db"
        self.safe = RetrySafe(f"sqlite:///{self.file}", tx=self.file)
        self.safe.migrate()
        self.loop = asyncio.new_event_loop()
        self.failing: set[str] = set()
        self.web = IdempotencyMiddleware(_answer_created, safe=self.safe, scope=lambda request: "account")
        self.receipt = self.safe.once("receipt:{order}")(lambda order: {"order": order})
        self.order = self._declare_operation()
        self.safe.publish("order.placed")(lambda job: None)
        self.worker = Worker(self.safe)
        self.stripe = webhooks.Receiver(self.safe, webhooks.Stripe("whsec_walk"))
        self.stripe.on("invoice.paid")(lambda event: None)

    def _declare_operation(self) -> Callable[..., Any]:
        order = self.safe.operation("order")

        @order.local
        def insert(tx: sqlite3.Connection, name: str) -> str:
            return name

        @order.foreign(timeout=20)
        def charge(name: str, *, key: str) -> str:
            if name in self.failing:
                raise TimeoutError("the provider does not answer")
            return key

        @order.local
        def finish(tx: sqlite3.Connection, name: str, paid: str) -> Answer:
            return Answer(201, {"order": name, "paid": bool(paid)})

        @order.body
        def place(name: str) -> Answer:
            inserted = insert(name)
            return finish(inserted, charge(inserted))

        return order

    def close(self) -> None:
        self.loop.run_until_complete(self.safe.aclose())
        self.loop.close()
        self.safe.close()

    # Each method is one walk; `prepare_…` makes what it needs and is not traced.

    def post(self, name: str) -> None:
        answer = self.loop.run_until_complete(asgi_client.post(self.web, "/orders", name, b'{"amount": 1}'))
        assert answer.status == 201, f"the POST was answered {answer.status}"

    def call_once(self, name: str) -> None:
        self.receipt(name)

    def prepare_resume(self, name: str) -> None:
        self.failing.add(name)
        try:
            self.order(name, key=name)
        except Exception:
            self.failing.discard(name)
            return
        raise AssertionError("the operation was expected to stop inside its foreign step")

    def run_operation(self, name: str) -> None:
        assert self.order(name, key=name).status == 201

    def prepare_job(self, name: str) -> None:
        with self.safe.transaction(self.file, key=name, scope="walk", request=name) as tx:
            stage(tx.handle, "order.placed", {"order": name})
            tx.answer = Answer(201, {})

    def publish_job(self, name: str) -> None:
        assert self.worker.run_once().counts["enqueuer"].published == 1

    def prepare_event(self, name: str) -> None:
        self.body = json.dumps({"id": name, "type": "invoice.paid", "data": {}}).encode()
        self.signed = self.stripe.scheme.sign(self.body, id=name, now=time.time())

    def receive_event(self, name: str) -> None:
        assert self.stripe.receive(self.signed, self.body).status == 200


async def _answer_created(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": b"{}"})


WALKS: dict[str, tuple[Callable[[Shop], Step | None], Callable[[Shop], Step]]] = {
    "POST": (lambda shop: None, lambda shop: shop.post),
    "replay": (lambda shop: shop.post, lambda shop: shop.post),
    "`@once`": (lambda shop: None, lambda shop: shop.call_once),
    "operation": (lambda shop: None, lambda shop: shop.run_operation),
    "resume": (lambda shop: shop.prepare_resume, lambda shop: shop.run_operation),
    "job": (lambda shop: shop.prepare_job, lambda shop: shop.publish_job),
    "webhook": (lambda shop: shop.prepare_event, lambda shop: shop.receive_event),
}
"""Each walk by the head of its column: what prepares it, and the walk itself."""


def trace_walks() -> dict[str, Walk]:
    """Run each walk twice; the second run is traced."""
    recorder = Recorder()
    walks = {}
    with tempfile.TemporaryDirectory() as folder:
        recorder.install()
        try:
            shop = Shop(folder)
            try:
                for number, (head, (find_preparation, find_step)) in enumerate(WALKS.items()):
                    prepare, step = find_preparation(shop), find_step(shop)
                    for name in (f"warm-{number}", f"traced-{number}"):
                        if prepare is not None:
                            prepare(name)
                        walks[head] = recorder.trace(lambda step=step, name=name: step(name))  # type: ignore[misc]
            finally:
                shop.close()
        finally:
            recorder.remove()
    return walks


# The table ------------------------------------------------------------------------------------------


def build_table(walks: dict[str, Walk]) -> str:
    """One row per file, sorted by layer."""
    files = list(dict.fromkeys(file for walk in walks.values() for file in walk.files))
    heads = list(walks)
    rows = [
        f"| {' | '.join(['file', 'what it is', *heads])} |",
        f"|---|---|{':-:|' * len(heads)}",
        f"| **{len(files)} files** | | {' | '.join(f'**{len(walk.files)}**' for walk in walks.values())} |",
    ]
    for file in sorted(files, key=_sort_by_layer):
        marks = ["●" if file in walk.files else "" for walk in walks.values()]
        rows.append(f"| `{file}` | {describe_file(file)} | {' | '.join(marks)} |")
    return "\n".join(rows)


LAYERS = ("web", "webhooks", "worker", "operations", "transactions", "engine", "policy.py", "core", "stores")


def _sort_by_layer(file: str) -> tuple[int, str]:
    first = file.split("/", 1)[0]
    return LAYERS.index(first) if first in LAYERS else len(LAYERS), file


def describe_file(file: str) -> str:
    """The first sentence of the file's docstring."""
    text = ast.get_docstring(ast.parse(Path(PACKAGE, file).read_text())) or ""
    first = " ".join(text.split("\n\n")[0].split())
    sentence = first.split(". ")[0].rstrip(".")
    return sentence.replace("|", "\\|")


def replace_table(page: str, table: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"


def print_counts(walks: dict[str, Walk]) -> None:
    for head, walk in walks.items():
        print(f"{head:12} {len(walk.files):3} files  {walk.calls:4} calls")


def main(arguments: Iterable[str]) -> None:
    walks = trace_walks()
    if "--counts" in arguments:
        print_counts(walks)
        return
    pages.write_page(PAGE, replace_table(PAGE.read_text(), build_table(walks)))


if __name__ == "__main__":
    main(sys.argv[1:])
