"""Waiting for transactions whose client is gone: a server is slow to notice, and holds their locks until then."""

from __future__ import annotations

from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.stores.sql.receipts import lock_number
from tests.transactions.crashing import KEY
from tests.transactions.rigs import World
from tests.waiting import until

LOOKS = (0.0, 0.02, 0.1, 0.3, *[1.0] * 60)
"""Pauses for `flow.RECOVERY_DELAYS_SECONDS`: a lost transaction is looked up until the server has noticed, however busy
it is. The default gives up after three seconds and raises StoreUnclear."""

HELD = """SELECT 1 FROM pg_locks WHERE locktype = 'advisory'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
"""Locks on keys in this worker's own database: others' are none of ours."""


def wait_for_the_dead(world: World) -> None:
    """Wait until the lock is free: on MySQL that of `crashing`'s key, on PostgreSQL every one. SQLite has none."""
    if world.url.startswith(("mysql", "mariadb")):
        lock = lock_number(parse_url(world.url).names, KEY.id("default"))
        free = f"SELECT IS_FREE_LOCK(CONCAT('retrysafe:', CRC32(DATABASE()), ':', {lock}))"
        until(lambda: world.query(free) == [(1,)], 60, "the dead one's lock")
    elif world.url.startswith("postgresql"):
        until(lambda: not world.query(HELD), 60, "the dead one's lock")
