"""Two applications with two namespaces in one store, two workers each: operations, jobs and webhook events of both,
with the same names, keys, topics and ids, while workers are killed.

    python -m tests.worker.neighbours URL FOLDER work NAME            a worker of one of them, until it is killed
    python -m tests.worker.neighbours URL FOLDER drive NUMBER KILLS SECONDS

NUMBER operations, jobs and events in all. Prints one line of JSON. Who did what for whom is noted in a file of its own,
which knows nothing of us.
"""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.core.jobs import Job, ListJobs, Stage
from retrysafe.core.ops import Stats
from retrysafe.webhooks import Event, Receiver
from retrysafe.worker import Worker
from tests.webhooks.senders import NOW, SENDERS

SHOPS = ("shop-a", "shop-b")
WORKERS = 2
BATCH = 50
LEASE = 5.0
BETWEEN = 3.0
"""Seconds between two kills."""
SLACK = SENDERS["slack"]


class Shop:
    """One application. Each item names its application, so that the handler can check it."""

    def __init__(self, url: str, folder: str, name: str) -> None:
        self.name = name
        self.notes = str(Path(folder) / "notes.db")
        self.safe = RetrySafe(url, namespace=name)
        self.order = self.safe.operation("order", policy=Policy(failures="release", start="worker", lease=LEASE))

        @self.order.body
        def place(owner: str, number: int) -> Answer:
            self.note("operation", owner, number)
            return Answer(201, {"for": owner})

        self.receiver = Receiver(self.safe, SLACK.scheme, inbox=True, clock=lambda: NOW, lease=LEASE)
        self.receiver.on()(self.handle)
        self.safe.publish("receipt")(self.deliver)

    @property
    def stages(self) -> bool:
        return self.safe.store.capabilities.outbox

    def handle(self, event: Event) -> None:
        self.note("event", event.json()["owner"], int(event.id[2:]))

    def deliver(self, job: Job) -> None:
        told = json.loads(job.payload)
        self.note("job", told["owner"], told["number"])

    def note(self, what: str, owner: str, number: int) -> None:
        with closing(sqlite3.connect(self.notes, timeout=60, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = OFF")
            db.execute(
                "INSERT INTO notes (hands, what, owner, number) VALUES (?, ?, ?, ?)", [self.name, what, owner, number]
            )

    def arrive(self, numbers: range) -> None:
        """Of everything one a number: the same ones as the neighbour has."""
        for number in numbers:
            self.order(self.name, number, key=f"order-{number}")
            assert self.receiver.receive(*SLACK.send(f"Ev{number}", owner=self.name)).status == 200
        if self.stages:
            jobs = (
                Job(f"{SHOPS.index(self.name):016x}{number:016x}", "receipt", payload(self.name, number), "all")
                for number in numbers
            )
            self.safe.execute(Stage(tuple(jobs), namespace=self.name))

    def left(self, each: int) -> int:
        """What is not done yet."""
        jobs = len(self.safe.execute(ListJobs(limit=5000, namespace=self.name))) if self.stages else 0
        return jobs + 2 * each - self.safe.execute(Stats(namespace=self.name)).completed


def payload(owner: str, number: int) -> bytes:
    return json.dumps({"owner": owner, "number": number}).encode()


class Workers:
    """Two of each application, started anew when they have died; one is killed now and then."""

    def __init__(self, url: str, folder: str) -> None:
        self._command = [sys.executable, "-m", "tests.worker.neighbours", url, folder, "work"]
        self._running = [(name, self._start(name)) for name in SHOPS for _ in range(WORKERS)]
        self.died = 0
        self._choose = random.Random(7)
        self._killed = time.monotonic()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self._command, name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill_one(self, most: int) -> None:
        """Long enough after the last one for its successor to have begun, and not more than so many."""
        if self.died < most and time.monotonic() - self._killed > BETWEEN:
            self._choose.choice(self._running)[1].kill()
            self._killed = time.monotonic()

    def start_again(self) -> None:
        for place, (name, worker) in enumerate(self._running):
            if worker.poll() is not None:
                self.died += 1
                self._running[place] = (name, self._start(name))

    def end(self) -> None:
        for _, worker in self._running:
            worker.kill()
            worker.wait()


def drive(url: str, folder: str, number: int, kills: int, seconds: float) -> dict[str, Any]:
    shops = [Shop(url, folder, name) for name in SHOPS]
    shops[0].safe.migrate()
    with closing(sqlite3.connect(shops[0].notes)) as db:
        db.execute("CREATE TABLE notes (hands TEXT, what TEXT, owner TEXT, number INTEGER)")
        db.execute("PRAGMA journal_mode = WAL")
    kinds = 3 if shops[0].stages else 2
    each = -(-number // (kinds * len(SHOPS)))
    began = time.monotonic()
    workers = Workers(url, folder)
    try:
        for first in range(0, each, BATCH):
            for shop in shops:
                shop.arrive(range(first, min(first + BATCH, each)))
            workers.kill_one(kills)
            workers.start_again()
        while sum(shop.left(each) for shop in shops) and time.monotonic() < began + seconds:
            workers.kill_one(kills)
            workers.start_again()
            time.sleep(0.5)
        return told(shops, each, kinds) | {"kills": workers.died, "seconds": round(time.monotonic() - began, 1)}
    finally:
        workers.end()
        for shop in shops:
            shop.safe.close()


def told(shops: list[Shop], each: int, kinds: int) -> dict[str, Any]:
    with closing(sqlite3.connect(shops[0].notes, timeout=60)) as db:
        crossings = db.execute("SELECT count(*) FROM notes WHERE hands <> owner").fetchone()[0]
        done = db.execute("SELECT owner, what, count(DISTINCT number), count(*) FROM notes GROUP BY 1, 2").fetchall()
    return {
        "sent": each * kinds * len(shops),
        "left": sum(shop.left(each) for shop in shops),
        "crossings": crossings,
        "done": sum(distinct for _, _, distinct, _ in done),
        "each": {f"{owner} {what}": distinct for owner, what, distinct, _ in done},
        "again": sum(times - distinct for _, _, distinct, times in done),
    }


if __name__ == "__main__":
    at, where, what, *rest = sys.argv[1:]
    if what == "work":
        Worker(Shop(at, where, rest[0]).safe, tick=1.0, grace=0.0, job_lease=LEASE).run()
    else:
        print(json.dumps(drive(at, where, int(rest[0]), int(rest[1]), float(rest[2]))), flush=True)
