"""Features of the Redis store: opening, lost scripts, the server's own expiry, damaged records, error messages.

tests/contract/ tests the state machine, test_redis_server.py what needs a server that is reconfigured or killed, and
test_redis_connections.py connections that are cut or cancelled.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from retrysafe.core.states import State
from retrysafe.core.times import HOUR_MICROS
from retrysafe.errors import (
    BadName,
    CorruptRecord,
    MissingDriver,
    StoreError,
    StoreUnavailable,
    StoreUnclear,
    StoreURLError,
    UsageError,
)
from retrysafe.stores.redis import AsyncRedisStore, RedisStore, backend
from retrysafe.stores.redis.failures import refusal_error, unreachable_error
from retrysafe.testing.builders import (
    advance,
    claim,
    complete,
    listing,
    lookup,
    reap,
    release,
    renew,
    stats,
    suspect,
    withdraw,
)
from tests.opening import patient, unique, with_option
from tests.servers.lazy import started
from tests.servers.valkey import ValkeyServer

pytestmark = pytest.mark.store("redis")


@pytest.fixture
def prefix() -> str:
    return unique("t") + ":"


@pytest.fixture
def url(redis_url: str, prefix: str) -> str:
    return with_option(patient("redis", redis_url), "prefix", prefix)


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    opened = RedisStore.open(url)
    yield opened
    opened.close()


@pytest.fixture
async def astore(url: str) -> AsyncIterator[AsyncRedisStore]:
    """With a pool of one connection: if it were returned with unread data, the next caller would get them."""
    opened = AsyncRedisStore.open(with_option(url, "max_connections", "1"))
    yield opened
    await opened.aclose()


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """redis-py's own client, to inspect and damage the data without the store."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


def key_of(prefix: str, record_id: bytes) -> str:
    return f"{prefix}{{0}}:{record_id.hex()}"


def index(raw: Any, prefix: str, name: str) -> list[bytes]:
    names: list[bytes] = raw.zrange(f"{prefix}{{0}}:{name}", 0, -1)
    return names


# Opening ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a{b}", "a b", "x" * 65, "ключ:", "a*"])
def test_a_prefix_that_cannot_be_one_is_named(name: str) -> None:
    with pytest.raises(BadName) as caught:
        RedisStore(redis.Redis(), prefix=name)
    assert repr(name) in str(caught.value)
    assert "A-Z" in str(caught.value)


@pytest.mark.parametrize("buckets", ["0", "257", "-1", "many", ""])
def test_buckets_that_cannot_be_are_named(redis_url: str, buckets: str) -> None:
    with pytest.raises(BadName, match="from 1 to 256"):
        backend.open(with_option(redis_url, "buckets", buckets))


def test_our_options_never_reach_the_driver_and_its_own_do() -> None:
    store = RedisStore.open("valkey://localhost:1/3?prefix=p:&buckets=2&socket_timeout=7&client_name=me")
    given = store._pool.connection_kwargs
    assert (given["db"], given["socket_timeout"], given["client_name"]) == (3, 7.0, "me")
    assert given["socket_connect_timeout"] == 5.0
    assert "prefix" not in given
    assert "buckets" not in given


@pytest.mark.parametrize("option", ["nonsense=1", "socket_timeout=soon"])
def test_an_option_nobody_knows_is_refused_when_opening(option: str) -> None:
    with pytest.raises(StoreURLError, match=option.partition("=")[0]):
        backend.open(f"redis://localhost:1/0?{option}")


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    for open_one in (backend.open, backend.open_async):
        with pytest.raises(MissingDriver, match=r"pip install 'retrysafe\[redis\]'"):
            open_one("redis://localhost:1/0")


def test_a_client_that_decodes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"decode_responses=True.*without it"):
        RedisStore(redis.Redis(decode_responses=True))
    with pytest.raises(UsageError, match=r"decode_responses=True.*without it"):
        AsyncRedisStore(redis.asyncio.Redis(decode_responses=True))


def test_what_is_no_client_of_one_server_is_refused() -> None:
    with pytest.raises(UsageError, match="no connection pool"):
        RedisStore(object())


def test_a_client_that_is_yours_stays_open(raw: redis.Redis, prefix: str) -> None:
    store = RedisStore(raw, prefix=prefix)
    assert store.execute(claim()).granted
    connections = raw.connection_pool._available_connections[:]
    store.close()
    assert all(connection._sock is not None for connection in connections)
    assert raw.ping()


def test_the_layout_is_written_down_once(store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    assert store.migrate() == ["0001_layout"]
    first = raw.hgetall(f"{prefix}meta")
    assert store.migrate() == []
    assert raw.hgetall(f"{prefix}meta") == first
    assert first[b"version"] == b"1"
    assert len(first[b"install"]) == 32


def test_another_layout_is_refused(store: RedisStore, raw: redis.Redis, url: str, prefix: str) -> None:
    store.migrate()
    with pytest.raises(UsageError, match="spread over 1"):
        RedisStore.open(with_option(url, "buckets", "4")).migrate()
    raw.hset(f"{prefix}meta", "version", "9")
    with pytest.raises(StoreError, match="upgrade retrysafe"):
        store.migrate()


def test_the_schema_names_the_keys(url: str, prefix: str) -> None:
    assert f"{prefix}{{<bucket>}}:states" in backend.schema(url)


# Scripts ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forgetful() -> Iterator[ValkeyServer]:
    """A server for this file only: SCRIPT FLUSH affects every user of a server, and other tests count requests."""
    server = started(ValkeyServer())
    yield server
    server.stop()


def test_scripts_are_loaded_again_when_the_server_forgot_them(forgetful: ValkeyServer) -> None:
    store = RedisStore.open(with_option(patient("redis", forgetful.url), "prefix", unique()))
    held = store.execute(claim())
    with forgetful.client() as raw:
        raw.script_flush()
    assert store.execute(complete(held))
    with forgetful.client() as raw:
        raw.script_flush()
    ops = [claim("a"), lookup("k"), claim("b"), lookup("a")]
    a, k, b, seen = store.execute_many(ops)
    assert a.granted
    assert b.granted
    assert k.record.state is State.COMPLETED
    assert seen.record == a.record
    store.close()


async def test_scripts_are_loaded_again_async(forgetful: ValkeyServer) -> None:
    url = with_option(patient("redis", forgetful.url), "prefix", unique())
    astore = AsyncRedisStore.open(with_option(url, "max_connections", "1"))
    with forgetful.client() as raw:
        raw.script_flush()
    first, second = await astore.execute_many([claim("a"), claim("b")])
    assert first.granted
    assert second.granted
    await astore.aclose()


# The server's expiry ------------------------------------------------------------------------------


def test_only_settled_records_expire_by_the_server(store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    held = store.execute(claim(retention=7200, now=None))
    key = key_of(prefix, held.record.id)
    assert raw.pttl(key) == -1
    assert store.execute(renew(held, now=None))
    assert raw.pttl(key) == -1
    assert store.execute(release(held, now=None))
    expires = store.execute(lookup(held, now=None)).record.expires
    assert raw.pexpiretime(key) == -(-expires // 1000)
    again = store.execute(claim(now=None))
    assert again.record.attempt == 2
    assert raw.pttl(key) == -1
    assert store.execute(suspect(again, now=None))
    assert raw.pttl(key) == -1
    assert store.execute(complete(again, now=None))
    assert raw.pttl(key) > 0


def test_what_was_withdrawn_stays_for_an_hour(store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    """The record has expired for every claimant. The server keeps it for an hour, so that late copies find it."""
    held = store.execute(claim(retention=7200, now=None))
    key = key_of(prefix, held.record.id)
    assert store.execute(withdraw(held, now=None))
    found = store.execute(lookup(held, now=None))
    assert found.record.expired(found.now)
    assert raw.pexpiretime(key) == -(-(found.record.completed + HOUR_MICROS) // 1000)
    assert store.execute(claim(body=b"another request", now=None)).granted
    assert raw.pttl(key) == -1


def test_unfinished_work_and_answers_kept_for_ever_have_no_end(
    store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    held = store.execute(claim(now=None))
    store.execute(advance(held, now=None))
    store.execute(release(held, now=None))
    assert raw.pttl(key_of(prefix, held.record.id)) == -1
    kept = store.execute(claim("kept", retention=float("inf"), now=None))
    store.execute(complete(kept, now=None))
    assert raw.pttl(key_of(prefix, kept.record.id)) == -1


def test_with_a_given_moment_the_server_expires_nothing(store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    held = store.execute(claim())
    store.execute(complete(held))
    assert raw.pttl(key_of(prefix, held.record.id)) == -1


def test_what_the_server_expired_leaves_no_trace(store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    """The record is gone, its index entries are not. The reaper counts and removes them; a new claim starts clean."""
    for key in ("a", "b"):
        held = store.execute(claim(key, now=0))
        store.execute(complete(held, now=0))
        raw.delete(key_of(prefix, held.record.id))
    assert store.execute(stats(now=3 * 86400)).expired == 2
    assert store.execute(claim("a", now=3 * 86400)).granted
    counted = store.execute(stats(now=3 * 86400))
    assert (counted.claimed, counted.completed) == (1, 1)
    assert store.execute(listing(now=0, state=State.COMPLETED)).records == ()
    assert store.execute(reap(now=3 * 86400)) == 1
    assert len(index(raw, prefix, "births")) == 1


def test_indexes_stay_bounded_without_a_worker(store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    """One settle operation in sixteen removes index entries of records that the server expired."""
    stale = [store.execute(claim(f"stale {n}", now=0)) for n in range(40)]
    for held in stale:
        assert store.execute(complete(held, now=0))
        raw.delete(key_of(prefix, held.record.id))
    tidying = [key for key in map(str, range(100)) if claim(key).id.hex().endswith("0")][:2]
    for key in tidying:
        assert store.execute(complete(store.execute(claim(key, now=None)), now=None))
    assert len(index(raw, prefix, "births")) == len(index(raw, prefix, "states")) == 2


def test_a_listing_survives_every_change_between_its_pages(store: RedisStore) -> None:
    """Records whose state or lease changes between two pages are still listed."""
    held = [store.execute(claim(str(n), lease=1000, now=0)) for n in range(12)]
    seen: set[bytes] = set()
    page = store.execute(listing(limit=3, now=1))
    changes = iter([lambda h: renew(h, lease=1, now=1), lambda h: complete(h, now=1), lambda h: suspect(h, now=1)] * 4)
    while True:
        assert len(page.records) <= 3
        seen |= {record.id for record in page.records}
        if not page.cursor:
            break
        change = next(changes)
        for one in held:
            store.execute(change(one))
        page = store.execute(listing(limit=3, cursor=page.cursor, now=1))
    assert seen == {one.record.id for one in held}


def test_a_listing_goes_on_behind_a_record_that_vanished(store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    """Also among records with the same creation time, which are ordered by id."""
    store.execute_many([claim(str(n), now=n // 5) for n in range(20)])
    seen: list[bytes] = []
    page = store.execute(listing(limit=3))
    while page.cursor:
        seen += [record.id for record in page.records]
        raw.delete(key_of(prefix, seen[-1]))
        raw.zrem(f"{prefix}{{0}}:births", seen[-1].hex())
        raw.zrem(f"{prefix}{{0}}:states", seen[-1].hex())
        page = store.execute(listing(limit=3, cursor=page.cursor))
    seen += [record.id for record in page.records]
    assert len(seen) == len(set(seen)) == 20
    assert [claim(str(n)).id for n in range(20) if claim(str(n)).id not in seen] == []


def test_a_long_listing_goes_in_stretches(store: RedisStore) -> None:
    """There are more records than one call reads, and the matching ones are at the end."""
    store.execute_many([claim(str(n)) for n in range(2500)])
    ids = sorted(record.id for record in everything(store, limit=700))
    assert len(ids) == len(set(ids)) == 2500
    assert len(list(everything(store, limit=700, state=State.CLAIMED))) == 2500
    assert list(everything(store, limit=700, scope="nobody")) == []
    last = next(record for record in everything(store, limit=700) if record.id == ids[-1])
    store.execute(suspect(last))
    assert [record.id for record in everything(store, limit=1, state=State.UNCERTAIN)] == [ids[-1]]


def everything(store: RedisStore, **asked: Any) -> Iterator[Any]:
    cursor = ""
    while True:
        page = store.execute(listing(cursor=cursor, **asked))
        yield from page.records
        cursor = page.cursor
        if not cursor:
            return


@pytest.mark.parametrize("cursor", ["nonsense", "0:xyz", "9:", "-1:00", "0"])
def test_a_foreign_cursor_is_named(store: RedisStore, cursor: str) -> None:
    with pytest.raises(UsageError, match=f"cursor '{cursor}'"):
        store.execute(listing(cursor=cursor))


# Damage -------------------------------------------------------------------------------------------


def change_field(field: str, change: Callable[[bytes], bytes]) -> Callable[[Any, str], Any]:
    """A function that changes one field of a record, or sets it if it is missing."""
    return lambda raw, key: raw.hset(key, field, change(raw.hget(key, field) or b""))


def answer(gone: bytes, headers: bytes) -> bytes:
    return struct.pack(">iBI", 200, len(gone), len(headers)) + gone + headers


NO_HEADERS = struct.pack(">I", 0)

DAMAGE = {
    "another type": lambda raw, key: (raw.delete(key), raw.set(key, "x")),
    "no head": lambda raw, key: raw.hdel(key, "h"),
    "half a head": change_field("h", lambda head: head[:30]),
    "an unknown state": change_field("h", lambda head: b"\x09" + head[1:]),
    "an unknown fate": change_field("h", lambda head: head[:1] + b"\x09" + head[2:]),
    "no birth": lambda raw, key: raw.hdel(key, "b"),
    "half a birth": change_field("b", lambda born: born[:-1]),
    "a start of a birth": change_field("b", lambda born: born[:20]),
    "no fingerprint": change_field("b", lambda born: struct.pack(">7I", 1, 0, 0, 0, 0, 0, 0) + b"?"),
    "half a point": change_field("p", lambda _: struct.pack(">I", 9) + b"charge"),
    "a header without a value": change_field("a", lambda _: answer(b"", struct.pack(">II", 1, 0))),
    "half an answer": change_field("a", lambda _: answer(b"", NO_HEADERS)[:-1]),
    "an unknown tombstone": change_field("a", lambda _: answer(b"fishing", NO_HEADERS)),
    "no text": change_field("n", lambda _: b"\xff"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_neither_run_nor_overwritten(
    store: RedisStore, raw: redis.Redis, prefix: str, damage: str
) -> None:
    held = store.execute(claim())
    key = key_of(prefix, held.record.id)
    DAMAGE[damage](raw, key)
    before = raw.dump(key)
    for op in (lookup(held), claim()):
        with pytest.raises(CorruptRecord, match=held.record.id.hex()[:16]):
            store.execute(op)
    other = store.execute(claim("other"))
    page = store.execute(listing())
    assert (page.records, page.unreadable) == ((other.record,), (held.record.id,)), "it hides none of the others"
    assert raw.dump(key) == before


def test_damage_does_not_stop_the_reaper(store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    good, bad = (store.execute(claim(key)) for key in ("good", "bad"))
    store.execute_many([complete(good), complete(bad)])
    raw.delete(key_of(prefix, bad.record.id))
    raw.set(key_of(prefix, bad.record.id), "x")
    assert store.execute(reap(now=3 * 86400)) == 1
    assert raw.exists(key_of(prefix, bad.record.id))


# A server that says no ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (redis.exceptions.OutOfMemoryError("command not allowed"), "OOM.*maxmemory"),
        (redis.ResponseError("Error running script (call to f_1): @user_script:9: -OOM command not"), "OOM.*maxmemory"),
        (redis.ReadOnlyError("You can't write against a read only replica."), "READONLY.*primary"),
        (redis.BusyLoadingError("Redis is loading the dataset in memory"), "LOADING.*again"),
        (redis.exceptions.MasterDownError("Link with MASTER is down"), "MASTERDOWN.*primary"),
        (redis.AuthenticationError("Authentication required."), "NOAUTH.*password"),
        (redis.AuthenticationError("invalid username-password pair"), "WRONGPASS.*URL"),
        (redis.exceptions.NoPermissionError("this user has no permissions"), "NOPERM.*ACL"),
        (redis.ResponseError("MISCONF Redis is configured to save"), "MISCONF.*disk"),
        (redis.ResponseError("BUSY Redis is busy running a script"), "BUSY.*SCRIPT KILL"),
        (redis.exceptions.MovedError("1 127.0.0.1:7000"), "MOVED.*cluster"),
        (redis.ResponseError("something new"), "ERR.*something new"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_refusal_says_what_it_is_and_what_to_do(error: Exception, words: str) -> None:
    translated = refusal_error(error, "Redis at here:1")
    assert isinstance(translated, StoreUnavailable)
    assert not isinstance(translated, StoreUnclear)
    with pytest.raises(StoreUnavailable, match=f"Redis at here:1.*{words}"):
        raise translated


def test_a_refused_log_in_is_a_refusal_too() -> None:
    translated = unreachable_error(redis.AuthenticationError("invalid username-password pair"), "Redis at here:1")
    assert "WRONGPASS" in str(translated)


def test_a_wrong_password_is_told_without_it(redis_url: str) -> None:
    store = RedisStore.open(redis_url.replace("redis://", "redis://nobody:hunter2@"))
    with pytest.raises(StoreUnavailable, match="WRONGPASS") as caught:
        store.execute(claim())
    assert "hunter2" not in str(caught.value)
    store.close()


def test_another_applications_key_under_our_prefix(store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    raw.set(f"{prefix}{{0}}:states", "x")
    with pytest.raises(StoreError, match="another prefix"):
        store.execute(stats())
