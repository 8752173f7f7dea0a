"""A saga whose steps are a queue worker's jobs, with the worker killed between the charge and its record."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from examples.recipes.worker_step import Shop

from retrysafe import Answer
from retrysafe.errors import NotFinished
from tests.recipes.durable_world import PATIENCE, Program
from tests.waiting import until

LEASE = 2.0
"""How long a worker may be silent: a dead one is what this is about. A live one that is held up for longer runs its
job a second time, with the same key, and the provider recognises it."""


@contextmanager
def worker(folder: Path) -> Iterator[Program]:
    program = Program(folder, "tests.recipes.run_worker_step", str(folder), str(LEASE))
    try:
        yield program
    finally:
        program.stop()


def ordered(shop: Shop, who: str, key: str) -> Answer:
    """The client: the same key until there is an answer."""
    answers: list[Any] = []

    def asked() -> bool:
        try:
            answers.append(shop.order(who, 500, key=key))
        except NotFinished:
            return False
        return True

    until(asked, PATIENCE, f"the order {key}")
    answer: Answer = answers[0]
    return answer


def test_a_step_is_done_once_although_its_worker_dies(tmp_path: Path) -> None:
    shop = Shop(tmp_path, lease=LEASE, wait=0.5)
    (tmp_path / "die").touch()
    with worker(tmp_path) as first:
        with pytest.raises(NotFinished):  # the worker has not begun, or is dead already
            shop.order("ada", 500, key="order-1")
        until(lambda: shop.provider.moves("ada") == [500], PATIENCE, "the charge")
        assert first.process.wait(PATIENCE) == -signal.SIGKILL
    shop.wait = 5.0  # an operation has ten attempts: together they outlast a slow start of the worker
    with worker(tmp_path):
        answer = ordered(shop, "ada", "order-1")
        assert answer.status == 201
        assert ordered(shop, "ada", "order-1").body == answer.body
        assert shop.provider.moves("ada") == [500]

        shop.can_deliver = False
        assert ordered(shop, "bob", "order-2").status == 503
        assert ordered(shop, "bob", "order-2").status == 503
        assert shop.provider.moves("bob") == [500, -500]
    shop.safe.close()


def test_the_job_of_a_step_is_known_by_saga_and_step(tmp_path: Path) -> None:
    """Nobody works here: what is in the queue is one job, however often the saga asks."""
    shop = Shop(tmp_path, wait=0.0)
    for _ in range(3):
        try:
            shop.order("ada", 500, key="order-1")
        except NotFinished:
            continue
    pending = shop.huey.pending()
    assert len(pending) == 1
    saga, _, step = pending[0].id.rpartition("-")
    assert saga.startswith("order-")
    assert step == "charge"
    assert shop.jobs.state(pending[0].id) == "waiting"
    shop.safe.close()
