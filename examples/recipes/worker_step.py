"""A saga whose steps are done by a queue's workers. Whoever dies, the worker or the saga's own process, there is one
charge for one order, and when nobody can deliver there is one refund.

    python -m examples.recipes.worker_step shop/            # a worker
    Shop(Path("shop")).order("ada", 500, key="order-1")     # anywhere else

The saga enqueues a step's job under the step's own key, `{saga}-{step}`, and waits for its result. If it has to stop
waiting it is not finished (the client's retry, or the worker of retrysafe, goes on), and whoever goes on asks for the
same job.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from huey import SqliteHuey
from huey.consumer import Consumer

from retrysafe import Answer, RetrySafe
from retrysafe.jobs import JOB, current_job, saga_step
from retrysafe.jobs.huey import HueyJobs
from retrysafe.operations import Operation, Undo

UNDO_WAIT = 300.0
"""Seconds. An undo is tried a few times and then given to a person, so it had better wait for a slow worker."""


class Provider:
    """Somebody else's payments: knows nothing of us, but recognises a key it has seen."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "provider.db"
        with sqlite3.connect(self.path) as db:
            db.execute("CREATE TABLE IF NOT EXISTS moves (key TEXT PRIMARY KEY, who TEXT, cents INTEGER)")

    def move(self, key: str, who: str, cents: int) -> str:
        with sqlite3.connect(self.path) as db:
            db.execute("INSERT OR IGNORE INTO moves VALUES (?, ?, ?)", (key, who, cents))
        return f"move-{key[:8]}"

    def moves(self, who: str) -> list[int]:
        with sqlite3.connect(self.path) as db:
            return [cents for (cents,) in db.execute("SELECT cents FROM moves WHERE who = ? ORDER BY rowid", (who,))]


class Shop:
    def __init__(
        self, folder: Path, provider: Provider | None = None, *, lease: float = 60.0, wait: float = 20.0
    ) -> None:
        """`lease`: how long a worker may be silent; `wait`: how long the saga waits for one at a time."""
        self.path = folder / "shop.db"
        self.safe = RetrySafe(f"sqlite:///{self.path}", tx=self.path)
        self.safe.migrate()
        self.provider = provider or Provider(folder)
        self.huey = SqliteHuey(filename=str(folder / "queue.db"))
        self.jobs = HueyJobs(self.safe, self.huey, policy=JOB.replace(lease=lease))
        self.wait = wait
        self.can_deliver = True
        self._tasks()
        self.order = self._saga()

    def _tasks(self) -> None:
        """What workers do. The key is the same for every attempt of a job, so the provider recognises a second one."""

        @self.jobs.task(name="charge_card")
        def charge_card(who: str, cents: int) -> str:
            return self.provider.move(current_job().key("provider"), who, cents)

        @self.jobs.task(name="refund_card")
        def refund_card(who: str, cents: int) -> str:
            return self.provider.move(current_job().key("provider"), who, -cents)

    def _saga(self) -> Operation:
        order = self.safe.operation("order")

        def refund(who: str, cents: int, *, key: str) -> None:
            self.jobs.perform("refund_card", (who, cents), key=key, wait=UNDO_WAIT)

        @order.foreign(undo=refund)
        def charge(who: str, cents: int, *, key: str) -> str:
            charged: str = self.jobs.perform("charge_card", (who, cents), key=saga_step("charge"), wait=self.wait)
            return charged

        @order.foreign
        def ship(who: str, *, key: str) -> str:
            if not self.can_deliver:
                raise Undo(503, {"error": "nobody delivers today"})
            return f"parcel for {who}"

        @order.body
        def place(who: str, cents: int) -> Answer:
            return Answer(201, {"charge": charge(who, cents), "parcel": ship(who)})

        return place


def work(shop: Shop) -> None:
    Consumer(shop.huey, workers=1, check_worker_health=False).run()


if __name__ == "__main__":
    work(Shop(Path(sys.argv[1])))
