"""A discrete-event model of application processes in front of a store: what a benchmark on one machine cannot show.

Callers are closed loops: a claim, then its completion, then the next pair. A process has one core. Its operations wait
as they do in stores/batching, with the limits and the function of that package. A batch costs processor time in the
process and on the server, travels, and is answered when it is on disk. All costs are parameters (capacity.py fits them
to measured processor time). The model knows no locks, no caches and no checkpoints: its rates are upper bounds for a
machine on which work costs as much.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from retrysafe.stores.batching.queue import MAX_BATCH_OPS, MIN_BATCH_OPS, compute_batch_limit

Action = Callable[[], None]


class Cost(NamedTuple):
    """Processor seconds: for each batch, and for each operation in it."""

    batch: float
    op: float

    def of(self, ops: int) -> float:
        return self.batch + self.op * ops


class Clock:
    """Runs actions in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Action]] = []
        self._made = 0

    def after(self, seconds: float, action: Action) -> None:
        self._made += 1
        heapq.heappush(self._due, (self.now + seconds, self._made, action))

    def run_until(self, end: float) -> None:
        while self._due and self._due[0][0] <= end:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = end


class Cores:
    """So many cores and one line in front of them."""

    def __init__(self, clock: Clock, count: int) -> None:
        self.busy_seconds = 0.0
        self._clock = clock
        self._count = count
        self._free = count
        self._line: deque[tuple[float, Action]] = deque()

    def serve(self, seconds: float, then: Action) -> None:
        self._line.append((seconds, then))
        self._begin()

    def share_busy(self) -> float:
        """How much of the cores was used so far, from 0 to 1."""
        return self.busy_seconds / (self._clock.now * self._count)

    def _begin(self) -> None:
        while self._free and self._line:
            seconds, then = self._line.popleft()
            self._free -= 1
            self.busy_seconds += seconds
            self._clock.after(seconds, lambda then=then: self._end(then))  # type: ignore[misc]

    def _end(self, then: Action) -> None:
        self._free += 1
        then()
        self._begin()


class Disk:
    """A flush at a time. What waits when a flush begins is on disk when it ends (group commit)."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.flushes = 0
        self._clock = clock
        self._seconds = seconds
        self._waiting: list[Action] = []
        self._flushing = False

    def flush(self, then: Action) -> None:
        self._waiting.append(then)
        self._begin()

    def _begin(self) -> None:
        if self._flushing or not self._waiting:
            return
        self._flushing, taken, self._waiting = True, self._waiting, []
        self.flushes += 1
        self._clock.after(self._seconds, lambda: self._end(taken))

    def _end(self, taken: list[Action]) -> None:
        self._flushing = False
        for then in taken:
            then()
        self._begin()


class Server(Protocol):
    def receive(self, ops: int, reply: Action) -> None: ...
    def share_busy(self) -> float: ...


class SqlServer:
    """A batch runs on one of the cores and commits; commits share flushes."""

    def __init__(self, clock: Clock, cost: Cost, cores: int, flush_seconds: float) -> None:
        self._cost = cost
        self._cores = Cores(clock, cores)
        self._disk = Disk(clock, flush_seconds)

    def receive(self, ops: int, reply: Action) -> None:
        self._cores.serve(self._cost.of(ops), lambda: self._disk.flush(reply))

    def share_busy(self) -> float:
        return self._cores.share_busy()


class LoopServer:
    """Redis: one thread. Each turn it carries out what has arrived, writes and flushes once if it must
    (`turn_seconds`), and answers."""

    def __init__(self, clock: Clock, cost: Cost, turn_seconds: float) -> None:
        self._clock = clock
        self._cost = cost
        self._turn_seconds = turn_seconds
        self._arrived: list[tuple[int, Action]] = []
        self._turning = False
        self._busy_seconds = 0.0

    def receive(self, ops: int, reply: Action) -> None:
        self._arrived.append((ops, reply))
        self._begin()

    def share_busy(self) -> float:
        """The thread waits for its flush, so that counts, too."""
        return self._busy_seconds / self._clock.now

    def _begin(self) -> None:
        if self._turning or not self._arrived:
            return
        self._turning, taken, self._arrived = True, self._arrived, []
        seconds = sum(self._cost.of(ops) for ops, _ in taken) + self._turn_seconds
        self._busy_seconds += seconds
        self._clock.after(seconds, lambda: self._end(taken))

    def _end(self, taken: list[tuple[int, Action]]) -> None:
        self._turning = False
        for _, reply in taken:
            reply()
        self._begin()


class PartitionedServer:
    """DynamoDB: each operation alone. Its index entry goes to one of a few partitions, which take so many writes per
    second. A real table refuses what is above that, and the driver retries; here it waits."""

    def __init__(self, clock: Clock, partitions: int, writes_per_second: float, rng: random.Random) -> None:
        self._partitions = [Cores(clock, 1) for _ in range(partitions)]
        self._seconds = 1 / writes_per_second
        self._rng = rng

    def receive(self, ops: int, reply: Action) -> None:
        assert ops == 1, "DynamoDB gets each operation alone"
        self._rng.choice(self._partitions).serve(self._seconds, reply)

    def share_busy(self) -> float:
        return max(each.share_busy() for each in self._partitions)


@dataclass(frozen=True)
class Setup:
    """`flights`: how many batches of a process may be under way at each server. `pipelined`: any number may, and a
    batch is what has gathered while the one before it was packed. `batch`: the largest batch."""

    processes: int
    callers: int
    client: Cost
    round_trip: float
    flights: int = 1
    batch: int = MAX_BATCH_OPS
    pipelined: bool = False


class Queue:
    """The operations of one process for one server, as stores/batching queues them."""

    def __init__(self, clock: Clock, setup: Setup, core: Cores, server: Server, sizes: list[int]) -> None:
        self._clock, self._setup, self._core, self._server, self._sizes = clock, setup, core, server, sizes
        self._waiting: deque[Action] = deque()
        self._flying: list[int] = []
        self._packing = 0
        self._delivering = False
        self._scheduled = False

    def put(self, done: Action) -> None:
        self._waiting.append(done)
        if not self._setup.pipelined:
            self._send()
        elif not self._scheduled:
            self._scheduled = True
            self._clock.after(0, self._write)

    def _write(self) -> None:
        """The end of a turn of the event loop: what came in this turn is written together."""
        self._scheduled = False
        self._send()

    def _send(self) -> None:
        """Ends when no batch may follow: the next one is sent when a reply comes."""
        if self._delivering:
            return  # all callers of a batch continue before the next one is sent
        while self._waiting and self._may_send():
            limit = compute_batch_limit(len(self._waiting), sum(self._flying), self._setup.flights, self._setup.batch)
            taken = [self._waiting.popleft() for _ in range(min(limit, self._setup.batch, len(self._waiting)))]
            self._flying.append(len(taken))
            self._sizes.append(len(taken))
            self._packing += 1
            self._core.serve(self._setup.client.of(len(taken)), lambda taken=taken: self._travel(taken))  # type: ignore[misc]

    def _may_send(self) -> bool:
        if self._setup.pipelined:
            return not self._packing
        crowded = len(self._flying) < self._setup.flights and len(self._waiting) >= MIN_BATCH_OPS
        return not self._flying or crowded

    def _travel(self, taken: list[Action]) -> None:
        self._packing -= 1
        half = self._setup.round_trip / 2
        reply = lambda: self._clock.after(half, lambda: self._arrive(taken))  # noqa: E731
        self._clock.after(half, lambda: self._server.receive(len(taken), reply))
        self._send()

    def _arrive(self, taken: list[Action]) -> None:
        self._flying.remove(len(taken))
        self._delivering = True
        for done in taken:
            done()
        self._delivering = False
        self._send()


class Outcome(NamedTuple):
    rate: float
    """Pairs per second."""
    median: float
    p99: float
    """Seconds of a pair."""
    batch: float
    """Operations in a batch, on average."""
    server_busy: float
    client_busy: float


def simulate(
    setup: Setup, build_servers: Callable[[Clock, random.Random], list[Server]], *, seconds: float = 1.0, seed: int = 1
) -> Outcome:
    """Run for so long, after a fifth of that for warming up. The same seed gives the same outcome."""
    clock, rng = Clock(), random.Random(seed)
    servers = build_servers(clock, rng)
    cores = [Cores(clock, 1) for _ in range(setup.processes)]
    sizes: list[int] = []
    queues = [[Queue(clock, setup, core, server, sizes) for server in servers] for core in cores]
    warm = seconds / 5
    taken: list[float] = []

    def begin(mine: list[Queue]) -> None:
        since, queue = clock.now, rng.choice(mine)  # one key is on one server
        queue.put(lambda: queue.put(lambda: end(mine, since)))

    def end(mine: list[Queue], since: float) -> None:
        if clock.now >= warm:
            taken.append(clock.now - since)
        begin(mine)

    for mine in queues:
        at = rng.random() * setup.round_trip
        for _ in range(setup.callers):
            clock.after(at, lambda mine=mine: begin(mine))  # type: ignore[misc]
    clock.run_until(warm + seconds)
    taken.sort()
    return Outcome(
        rate=len(taken) / seconds,
        median=statistics.median(taken),
        p99=taken[int(len(taken) * 0.99)],
        batch=statistics.fmean(sizes),
        server_busy=max(server.share_busy() for server in servers),
        client_busy=statistics.fmean(core.share_busy() for core in cores),
    )


def fit_cost(measured: list[tuple[int, int, float]]) -> Cost:
    """The cost of a batch and of an operation, by least squares: each point has its batches, operations and processor
    seconds. Points are weighted so that each counts for its cost per operation. A cost is never negative."""
    rows = [(batches / ops, 1.0, seconds / ops) for batches, ops, seconds in measured]
    aa, ab, bb = (sum(one * two for one, two in pairs) for pairs in _products(rows))
    ay, by = sum(row[0] * row[2] for row in rows), sum(row[1] * row[2] for row in rows)
    ground = aa * bb - ab * ab
    batch, op = ((bb * ay - ab * by) / ground, (aa * by - ab * ay) / ground) if ground > 1e-12 else (0.0, by / bb)
    if batch < 0:
        return Cost(0.0, by / bb)
    return Cost(ay / aa, 0.0) if op < 0 else Cost(batch, op)


def _products(rows: list[tuple[float, float, float]]) -> list[list[tuple[float, float]]]:
    return [[(row[one], row[two]) for row in rows] for one, two in ((0, 0), (0, 1), (1, 1))]
