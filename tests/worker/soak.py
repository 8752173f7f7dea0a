"""Three workers, twenty topics of which one hangs, one ends its process and one has no publisher; operations, jobs and
webhook events arrive while workers are killed.

    python -m tests.worker.soak URL FOLDER work            one worker, until it is killed
    python -m tests.worker.soak URL FOLDER drive SECONDS SEED

Prints one line of JSON. What was done is noted in a file of its own, which knows nothing of us.
"""

from __future__ import annotations

import json
import os
import random
import signal
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

WORKERS = 3
TOPICS = [f"t{number}" for number in range(20)]
HANGS, KILLS, UNHEARD = TOPICS[:3]
BAD = 2
"""Jobs of each of the topics that cannot be delivered."""
ATTEMPTS = 10
BOUND = 120.0
"""Seconds after the last fault in which everything that can be done is done."""
SLACK = SENDERS["slack"]


class World:
    def __init__(self, url: str, folder: str) -> None:
        self.notes = str(Path(folder) / "notes.db")
        self.safe = RetrySafe(url, namespace="soak")
        self.order = self.safe.operation("order", policy=Policy(failures="release", start="worker", lease=2.0))

        @self.order.body
        def place(number: int) -> Answer:
            self.note("operation", number)
            return Answer(201)

        self.receiver = Receiver(self.safe, SLACK.scheme, inbox=True, clock=lambda: NOW, lease=2.0)
        self.receiver.on()(self.handle)

    def handle(self, event: Event) -> None:
        self.note("event", int(event.id[2:]))

    def note(self, what: str, number: int) -> None:
        with closing(sqlite3.connect(self.notes, timeout=60, isolation_level=None)) as db:
            db.execute("INSERT INTO notes (what, number) VALUES (?, ?)", [what, number])

    def noted(self, what: str) -> list[int]:
        with closing(sqlite3.connect(self.notes, timeout=60)) as db:
            return [row[0] for row in db.execute("SELECT number FROM notes WHERE what = ? ORDER BY id", [what])]


def work(world: World) -> None:
    for topic in TOPICS:
        if topic == HANGS:
            world.safe.publish(topic)(lambda job: time.sleep(3600))
        elif topic == KILLS:
            world.safe.publish(topic)(lambda job: os.kill(os.getpid(), signal.SIGKILL))
        elif topic != UNHEARD:
            world.safe.publish(topic)(lambda job: world.note(job.topic, int(job.payload)))
    Worker(world.safe, tick=1.0, grace=0.0, job_lease=3.0, job_attempts=ATTEMPTS).run()


class Drive:
    def __init__(self, world: World, arguments: list[str], seed: int) -> None:
        self._world = world
        self._command = [sys.executable, "-m", "tests.worker.soak", *arguments, "work"]
        self._choose = random.Random(seed)
        self._workers = [self._start() for _ in range(WORKERS)]
        self.kills = 0
        self.sent = 0

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def again(self) -> None:
        """Those that have died are started anew."""
        for place, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self.kills += 1
                self._workers[place] = self._start()

    def arrive(self) -> None:
        """One of everything."""
        number, self.sent = self.sent, self.sent + 1
        ways = [topic for topic in TOPICS if number < BAD or topic not in (HANGS, KILLS, UNHEARD)]
        jobs = (
            Job(f"{number:016x}{place:016x}", topic, str(number).encode(), topic) for place, topic in enumerate(ways)
        )
        self._world.safe.execute(Stage(tuple(jobs), namespace="soak"))
        self._world.order(number, key=f"order-{number}")
        assert self._world.receiver.receive(*SLACK.send(f"Ev{number}")).status == 200

    def kill(self) -> None:
        self._choose.choice(self._workers).kill()

    def end(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()


def drive(world: World, arguments: list[str], seconds: float, seed: int) -> dict[str, Any]:
    with closing(sqlite3.connect(world.notes)) as db:
        db.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, what TEXT, number INTEGER)")
        db.execute("PRAGMA journal_mode = WAL")
    world.safe.migrate()
    driver = Drive(world, arguments, seed)
    try:
        until, next_kill = time.monotonic() + seconds, time.monotonic() + 5
        while time.monotonic() < until:
            driver.arrive()
            driver.again()
            if time.monotonic() > next_kill:
                driver.kill()
                next_kill = time.monotonic() + driver._choose.uniform(1, 8)
            time.sleep(0.1)
        faults = time.monotonic()
        while left(world, driver.sent) and time.monotonic() < faults + BOUND:
            driver.again()
            time.sleep(0.2)
        return told(world, driver) | {"seconds_after": round(time.monotonic() - faults, 1)}
    finally:
        driver.end()
        world.safe.close()


def left(world: World, sent: int) -> int:
    """What can be done and is not yet, and what cannot and is no dead letter yet."""
    jobs = world.safe.execute(ListJobs(limit=5000, namespace="soak"))
    waiting = [each for each in jobs if not each.dead and each.job.topic not in (UNHEARD, HANGS)]
    return len(waiting) + 2 * sent - world.safe.execute(Stats()).completed


def told(world: World, driver: Drive) -> dict[str, Any]:
    everything = list(range(driver.sent))
    good = [topic for topic in TOPICS if topic not in (HANGS, KILLS, UNHEARD)]
    jobs = world.safe.execute(ListJobs(limit=5000, namespace="soak"))

    def of(topic: str) -> list[Any]:
        return [each for each in jobs if each.job.topic == topic]

    return {
        "sent": driver.sent,
        "kills": driver.kills,
        "left": left(world, driver.sent),
        "not_in_order": [topic for topic in good if list(dict.fromkeys(world.noted(topic))) != everything],
        "operations": sorted(set(world.noted("operation"))) == everything,
        "events": sorted(set(world.noted("event"))) == everything,
        "killing": [(each.dead, each.error.partition(":")[0]) for each in of(KILLS)],
        "unheard": [(each.dead, each.attempts) for each in of(UNHEARD)],
        "hanging": len(of(HANGS)),
        "strays": [each.job.topic for each in jobs if each.job.topic in good],
    }


if __name__ == "__main__":
    url, folder, what, *rest = sys.argv[1:]
    made = World(url, folder)
    if what == "work":
        work(made)
    else:
        print(json.dumps(drive(made, [url, folder], float(rest[0]), int(rest[1]))), flush=True)
