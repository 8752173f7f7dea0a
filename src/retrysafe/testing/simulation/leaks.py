"""What an application's processes must not leave behind when everything is settled: tasks, timers, transactions, and
errors that nobody has heard of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrysafe.policy import DEFAULT_LEASE_SECONDS
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.loop import SimulatedLoop

HEARTBEAT = "_LoopBeats._start_due_beats"

if TYPE_CHECKING:
    from retrysafe.testing.simulation.fleet import Fleet


def find_leaks(fleet: Fleet) -> Iterator[str]:
    """Of hosts that answer requests and are alive. A worker goes on for ever, and so does what a scenario started there
    (tasks that are named `actor...`)."""
    loop = fleet.stage.loop
    for host in fleet.list_hosts(fleet.apps):
        left = [task for task in host.tasks if not task.done()]
        for task in left:
            if not task.get_name().startswith("actor"):
                yield f"{task.get_coro().__qualname__} on {host.name} is still running"
        if not left:
            yield from find_timers(loop, host)
    for actor in fleet.actors.values():
        if getattr(actor, "is_open", False):
            yield f"a transaction in {actor.name} is still open"
    for context in loop.unhandled:
        yield f"an error that nobody awaited: {context.get('message', '')} {context.get('exception', '')!r}"


def find_timers(loop: SimulatedLoop, host: Host) -> Iterator[str]:
    """Timers that the host itself has set: those of the network have a true time, and no time of the host's clock. The
    heartbeat has one timer for all calls, which goes off once more, finds nothing to do and is not set again. A machine
    that is suspended has no clock to compare with."""
    beats: set[int] = set()
    for _, _, call, where in loop._timers:
        if where is not host or not call.when() or call.cancelled():
            continue
        name, whose = getattr(call.callback, "__qualname__", ""), id(getattr(call.callback, "__self__", None))
        left = call.when() - host.monotonic(loop.now) if host.can_run(loop.now) else 0.0
        if name != HEARTBEAT or whose in beats or left > DEFAULT_LEASE_SECONDS:
            yield f"a timer for {name or call.callback!r} on {host.name} is still set, for {left:.0f} s"
        beats.add(whose)
