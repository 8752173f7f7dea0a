"""Rows that somebody else has locked, on real servers: their owner's writes give up in time and are tried again, and
nobody else's lease suffers (I28, I33)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from retrysafe import RetrySafe, current_lease
from retrysafe.core.states import State
from retrysafe.errors import StoreUnavailable
from retrysafe.policy import Policy
from retrysafe.testing.builders import advance, claim, complete, record_of, release, renew, suspect
from tests.faults.held_rounds import LEASE, PATIENCE, Round, find_record, longest_stall
from tests.faults.row_holders import HOLDERS, RowHolder
from tests.opening import COLOURS, open_migrated, patient, unique, with_option
from tests.waiting import until

SERVERS = [pytest.param(name, marks=pytest.mark.store(name)) for name in HOLDERS]

CASES = [(8, True), (12, True), (24, True), (24, False)]
"""How many rows are held: as many as batches may be in flight, more than the pool has connections, more than twice as
many as that. And whether their calls end meanwhile: then it is their completions that wait."""
ROUNDS = 5
STALL = LEASE / 4
"""Seconds in which nothing moved on this machine at all: then no lease can be kept, and the round does not count."""


@pytest.fixture
def table() -> str:
    return unique("held_")


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server_url(request: pytest.FixtureRequest, server: str) -> str:
    return str(request.getfixturevalue(f"{server}_url"))


@pytest.fixture
def url(server: str, server_url: str, table: str) -> str:
    return with_option(patient(server, server_url), "table", table)


@pytest.fixture
def open_session(server: str, server_url: str) -> Iterator[Callable[[], RowHolder]]:
    opened: list[RowHolder] = []

    def open_one() -> RowHolder:
        opened.append(HOLDERS[server](server_url))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_no_write_of_an_owner_waits_without_a_limit(
    url: str, table: str, open_session: Callable[[], RowHolder], colour: str
) -> None:
    do, other = open_migrated(url, colour), open_session()
    held = record_of(do(claim("k", lease=600, now=None)))
    other.lock(table, [held.id])
    longer = renew(held, lease=900, now=None)  # a lease that is long enough already needs no write
    for op in (longer, advance(held, now=None), suspect(held, now=None), release(held, now=None)):
        with pytest.raises(StoreUnavailable):
            do(op)
    with pytest.raises(StoreUnavailable):
        do(complete(held, now=None))
    other.let_go()
    assert do(complete(held, now=None)) is True
    do.close()


def test_a_held_row_costs_nobody_else_its_lease(url: str, table: str, open_session: Callable[[], RowHolder]) -> None:
    """The heartbeat of the whole process stood behind one row; and the held call's own completion outlasts it."""
    safe, other, admin = RetrySafe(url), open_session(), open_session()
    safe.migrate()
    locked = threading.Event()
    ids: dict[int, bytes] = {}

    @safe.once("slow:{n}", policy=Policy(lease=2.0, failures="release"))
    def slow(n: int) -> str:
        lease = current_lease()
        assert lease is not None
        ids[n] = lease.id
        if n == 0:
            assert locked.wait(PATIENCE)
            return "held"
        before = find_record(safe, lease.id).lease_until
        beats = before + 2_500_000
        until(lambda: find_record(safe, lease.id).lease_until > beats, PATIENCE, "beats beside the held row")
        # Not at once: a process that stood still has a lease again only after its next beat.
        until(lambda: lease.fits(0.0), PATIENCE, "a lease that is kept")
        return "free"

    answers: dict[int, str] = {}
    first = threading.Thread(target=lambda: answers.update({0: slow(0)}))
    first.start()
    until(lambda: 0 in ids, PATIENCE, "the first call")
    other.lock(table, [ids[0]])
    assert slow(1) == "free"
    locked.set()
    until(lambda: admin.count_waiting(table) > 0, PATIENCE, "a write of the first call that waits")
    other.let_go()
    first.join(PATIENCE)
    assert answers == {0: "held"}
    assert find_record(safe, ids[0]).state is State.COMPLETED
    safe.close()


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(("held", "ending"), CASES, ids=[f"{n}-{'ending' if ends else 'at work'}" for n, ends in CASES])
def test_many_held_rows_cost_nobody_else_its_lease(
    url: str, table: str, open_session: Callable[[], RowHolder], colour: str, ending: bool, held: int
) -> None:
    open_migrated(url, "sync").close()
    for _ in range(ROUNDS):
        played = Round(url, table, open_session(), held, ending=ending)
        with longest_stall(open_session()) as stalled:
            answers = played.play(colour)
        if stalled() < STALL:
            break
    else:
        pytest.fail(f"this machine stood still for {STALL} s and more in each of {ROUNDS} rounds")
    assert answers == ["once"] * len(answers)
    assert played.runs == dict.fromkeys((*played.held, *played.free), 1)
