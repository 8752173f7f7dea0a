"""Virtual time, and processes that die in it.

`Timed` gives every operation the virtual time, and answers nothing once the process is dead. The store itself is a real
one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, Complete, Op
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.guard import Task
from retrysafe.engine.handlers import Handler
from retrysafe.stores.base import Capabilities, Store
from retrysafe.stores.sql.names import TableNames
from retrysafe.testing.faults import Crashed
from retrysafe.webhooks import Event, Receiver

R = TypeVar("R")


@dataclass
class World:
    """The virtual time in seconds, and the point at which the current process will die."""

    now: float = 1_700_000_000.0
    dies: str = ""
    dead: bool = False

    @property
    def micros(self) -> int:
        return round(self.now * SECOND_MICROS)

    def clock(self) -> float:
        return self.now

    def start(self, dies: str = "") -> None:
        """A new process."""
        self.dies, self.dead = dies, False

    def at(self, point: str) -> None:
        if self.dies == point:
            self.dead = True
        if self.dead:
            raise Crashed(point)


class Timed:
    """A store in virtual time. A process dies before its claim, after it, or after its completion."""

    def __init__(self, inner: Store, world: World, names: TableNames | None = None) -> None:
        self._inner = inner
        self._world = world
        self.names = names
        """The store's tables, if it has some that a transaction can reach."""

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def execute(self, op: Op[R]) -> R:
        world = self._world
        world.at("before the claim" if isinstance(op, Claim) else "dead")
        made: Any = op
        reply = self._inner.execute(replace(made, now=world.micros) if getattr(op, "now", 0) is None else op)
        if isinstance(op, Claim):
            world.at("after the claim")
        elif isinstance(op, Complete):
            world.at("after completion")
        return reply  # type: ignore[no-any-return]  # the same operation with a time in it has the same reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return [self.execute(op) for op in ops]

    def migrate(self) -> list[str]:
        return self._inner.migrate()

    def close(self) -> None:
        self._inner.close()


class TimedTask(Task):
    """A task whose claim is made in virtual time: for transactions, whose statements do not pass through `Timed`."""

    world: World

    def claim(self) -> Claim:
        return replace(super().build_claim(), now=self.world.micros)


class TimedReceiver(Receiver):
    """A receiver in virtual time."""

    def __init__(self, world: World, *args: Any, **options: Any) -> None:
        super().__init__(*args, clock=world.clock, **options)
        self.world = world

    def task(self, event: Event, handler: Handler) -> Task:
        made = super().build_task(event, handler)
        timed = TimedTask(made.key, made.namespace, made.target, made.fingerprint, made.policy)
        timed.world = self.world
        return timed


class DyingConnection(sqlite3.Connection):
    """A connection whose process may die just before or just after its commit."""

    world: World

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            self.world.at("before the commit")
            done = super().execute(sql, *args)
            self.world.at("after the commit")
            return done
        return super().execute(sql, *args)
