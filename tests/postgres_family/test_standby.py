"""A primary with a standby. The primary is killed under load and the standby promoted; callers find it by themselves,
through a URL that names both (I1, I10). What the doctor says of such a pair is what happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.diagnosis import diagnose
from retrysafe.testing import Do
from tests.faults.load import Load, Told, check, completed
from tests.faults.story import asked, resend
from tests.opening import open_do, open_migrated, patient, unique
from tests.servers import PostgresServer
from tests.servers.lazy import started
from tests.servers.postgres_standby import StandbyServer, make_synchronous, states
from tests.waiting import until

pytestmark = [pytest.mark.store("postgres"), pytest.mark.xdist_group("postgres standby")]

ENOUGH = 60
PATIENCE = 120.0


@dataclass
class Pair:
    primary: PostgresServer
    standby: StandbyServer

    @property
    def url(self) -> str:
        """Both, and whichever takes writes. A pool that waits a second for a connection finds the new one soon."""
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        options = "target_session_attrs=read-write&pool=6&pool_timeout=1"
        return f"postgresql://postgres@{hosts}/postgres?{options}"

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    primary = started(PostgresServer())
    open_migrated(primary.url, "sync").close()
    standby = started(StandbyServer(primary))
    until(lambda: states(primary) == ["async"], PATIENCE, "the standby to be fed")
    yield Pair(primary, standby)
    standby.stop()
    primary.stop()


@pytest.mark.timeout(600)
def test_a_synchronous_standby_is_promoted_under_load(pair: Pair) -> None:
    assert standbys(pair.primary.url) == ("1, asynchronous", "at-most-once-until-failover")
    make_synchronous(pair.primary)
    assert standbys(pair.primary.url) == ("1, synchronous: ANY 1 (*)", "exactly-once-capable")
    told: list[Told] = []
    load = Load(pair.url, told.append)
    try:
        work(told)
        pair.fail_over()
        work(told)
    finally:
        load.stop()
    assert load.interrupted, "nobody noticed: the load was not there"
    do = open_do(pair.standby.url, "sync")
    check(told, do)
    do.close()
    assert standbys(pair.url) == ("none", "exactly-once-capable"), "the promoted one has no standby of its own"


@pytest.mark.timeout(600)
def test_an_asynchronous_standby_lacks_what_it_was_not_sent(pair: Pair) -> None:
    """What the doctor's label says, made to happen: acknowledged by the primary, unknown to who is promoted."""
    assert standbys(pair.url)[1] == "at-most-once-until-failover"
    assert role(pair.standby.url) == ("standby", False)
    op = asked(unique())
    before, after = open_do(pair.url, "sync"), open_do(patient("postgres", pair.standby.url), "sync")
    with pytest.raises(StoreUnavailable, match="read-only"):
        after(op)
    pair.standby.leave()
    assert resend(lambda: before(op)).granted
    pair.fail_over()
    assert lost(after, op.key)
    before.close()
    after.close()


def lost(do: Do, key: str) -> bool:
    """Whether another caller is granted the key as if nobody had asked for it before."""
    rival = resend(lambda: do(asked(key)))
    return bool(rival.granted) and rival.record.attempt == 1


def role(url: str) -> tuple[str, bool]:
    return next((one.value, one.fine) for one in diagnose(url).findings if one.setting == "role")


def standbys(url: str) -> tuple[str, str]:
    """What the doctor says of the standbys, and of the whole."""
    found = diagnose(url)
    return next(one.value for one in found.findings if one.setting == "standbys"), found.label


def work(told: list[Told]) -> None:
    mark = completed(told)
    until(lambda: completed(told) >= mark + ENOUGH, PATIENCE, "work on the server that takes writes")
