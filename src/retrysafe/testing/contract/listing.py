"""Lists and counts for people and workers, page by page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from retrysafe.core.ops import Stats, StatsReply
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.errors import UsageError
from retrysafe.testing.builders import advance, claim, complete, listing, reap, release, stats, suspect, withdraw
from retrysafe.testing.driver import Do


def populate(do: Do) -> dict[str, set[str]]:
    """Create twelve records in all states, two scopes, two kinds and two namespaces. Returns the keys for each
    filter."""
    expected: dict[str, set[str]] = {}

    def add(key: str, *groups: str) -> None:
        for group in (*groups, "all"):
            expected.setdefault(group, set()).add(key)

    for number in range(12):
        scope, kind = ("s1", "s2")[number % 2], ("http", "job")[number % 3 == 0]
        namespace = ("n1", "n2")[number >= 8]
        lease = 5 if number < 6 else 100
        owner = do(
            claim(
                f"k{number}",
                scope=scope,
                kind=kind,  # type: ignore[arg-type]  # both are kinds
                namespace=namespace,
                lease=lease,
                on_lapse=("rerun", "uncertain")[number == 4],
                now=0,
            )
        )
        state = ("claimed", "completed", "released", "uncertain")[number % 4]
        if state == "completed":
            assert do(complete(owner, b"x", now=1))
        elif state == "released":
            assert do(release(owner, now=1))
        elif state == "uncertain":
            assert do(suspect(owner, now=1))
        lapsed = ["lapsed"] if state == "claimed" and lease == 5 else []
        add(f"k{number}", scope, kind, namespace, state, f"{scope}+{state}", *lapsed)
    return expected


FILTERS: dict[str, dict[str, Any]] = {
    "all": {},
    "s1": {"scope": "s1"},
    "s2": {"scope": "s2"},
    "http": {"kind": "http"},
    "job": {"kind": "job"},
    "n1": {"namespace": "n1"},
    "n2": {"namespace": "n2"},
    "claimed": {"state": State.CLAIMED},
    "completed": {"state": State.COMPLETED},
    "released": {"state": State.RELEASED},
    "uncertain": {"state": State.UNCERTAIN},
    "s1+released": {"scope": "s1", "state": State.RELEASED},
    "lapsed": {"lapsed": True},
}


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_filters_show_what_they_say(do: Do, limit: int) -> None:
    expected = populate(do)
    for name, filters in FILTERS.items():  # one test for all: creating the records takes longer than listing them
        pages = do.pages(listing(**filters, limit=limit, now=50))
        assert all(len(page) <= limit for page in pages), name
        assert {record.key for page in pages for record in page} == expected[name], name


@pytest.mark.parametrize(("examine", "limit"), [(1, 100), (2, 1), (5, 100)])
def test_a_page_that_examines_few_records_shows_the_same_in_the_end(do: Do, examine: int, limit: int) -> None:
    expected = populate(do)
    for name, filters in FILTERS.items():
        pages = do.pages(listing(**filters, limit=limit, now=50, examine=examine))
        assert all(len(page) <= limit for page in pages), name
        assert {record.key for page in pages for record in page} == expected[name], name


@pytest.mark.parametrize("examine", [1, 3])
def test_open_records_are_listed_however_many_there_are(do: Do, examine: int) -> None:
    """Few are read by their index and sorted; many are passed over in the order of the list. Both end the same."""
    for number in range(35):
        owner = do(claim(f"k{number}", namespace=("n1", "n2")[number % 7 == 0], now=0))
        if number % 3 == 0:
            assert do(suspect(owner, now=1))
    for filters, wanted in (
        ({"state": State.UNCERTAIN}, {n for n in range(35) if n % 3 == 0}),
        ({"state": State.CLAIMED, "namespace": "n2"}, {n for n in range(35) if n % 3 and n % 7 == 0}),
        ({"lapsed": True}, {n for n in range(35) if n % 3}),
    ):
        pages = do.pages(listing(**filters, limit=4, now=900, examine=examine))
        assert sorted(record.key for page in pages for record in page) == sorted(f"k{n}" for n in wanted)


def test_a_filter_nothing_matches(do: Do) -> None:
    populate(do)
    for filters in ({"scope": "nobody"}, {"namespace": ""}, {"state": State.UNCERTAIN, "lapsed": True}):
        assert do.list_all(listing(**filters, now=50)) == {}


def test_only_what_was_released_at_a_recovery_point_rests(do: Do) -> None:
    """Unfinished work: the worker finds it among any number of released records that need no work."""
    for number in range(8):
        owner = do(claim(f"k{number}", namespace=("n1", "n2")[number % 2], on_lapse="resume", now=0))
        if number >= 4:
            assert do(advance(owner, "paid", b"x", now=0))
        if number not in (3, 7):
            assert do(release(owner, now=1))
    for limit in (1, 100):
        every_namespace = do.list_all(listing(resting=True, limit=limit, now=2))
        assert {record.key for record in every_namespace.values()} == {"k4", "k5", "k6"}
        one_namespace = do.list_all(listing(resting=True, namespace="n1", state=State.RELEASED, limit=limit, now=2))
        assert {record.key for record in one_namespace.values()} == {"k4", "k6"}
    assert do.list_all(listing(resting=True, state=State.CLAIMED, now=2)) == {}
    assert do.list_all(listing(resting=True, lapsed=True, now=200)) == {}


def test_lapsed_is_judged_to_the_tick(do: Do) -> None:
    owner = do(claim("k", lease=30, now=0))
    assert do.list_all(listing(lapsed=True, now=29.999999)) == {}
    assert list(do.list_all(listing(lapsed=True, now=30)).values()) == [owner.record]


def test_a_listed_record_is_the_whole_record(do: Do) -> None:
    owner = do(claim("k", input=b"in\x00\xff", now=0))
    assert do(complete(owner, b"\x00answer\xff", now=1))
    assert list(do.list_all(listing(now=1)).values()) == [do.record("k", now=1)]


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_paging_over_many_records_shows_each_of_them(do: Do, limit: int) -> None:
    ops = [claim(f"k{number}", scope=f"s{number % 3}", now=0) for number in range(41)]
    do.many(ops)
    pages = do.pages(listing(limit=limit))
    assert all(len(page) <= limit for page in pages)
    assert {record.id for page in pages for record in page} == {op.id for op in ops}
    one_scope = do.list_all(listing(limit=limit, scope="s1"))
    assert set(one_scope) == {op.id for op in ops if op.scope == "s1"}


def test_paging_while_records_come_and_go_shows_what_stays(do: Do) -> None:
    """A record that exists the whole time is listed at least once, whatever happens to other records."""
    staying = {do(claim(f"stay{number}", now=0)).record.id for number in range(10)}  # type: ignore[union-attr]
    page = do(listing(limit=3, state=State.CLAIMED))
    seen = {record.id for record in page.records}
    turn = 0
    while page.cursor:
        turn += 1
        assert turn < 100
        passing = do(claim(f"passing{turn}", now=0))
        assert do(complete(passing, b"x", now=0))
        page = do(listing(limit=3, state=State.CLAIMED, cursor=page.cursor))
        seen |= {record.id for record in page.records}
    assert staying <= seen


@pytest.mark.parametrize("cursor", ["zz", "1:x:y", "no cursor"])
def test_a_cursor_that_is_none_is_refused(do: Do, cursor: str) -> None:
    with pytest.raises(UsageError, match="cursor"):
        do(listing(cursor=cursor))


def test_an_empty_store_lists_nothing(do: Do) -> None:
    page = do(listing())
    assert (page.records, page.cursor) == ((), "")


def test_stats_count_by_state(do: Do) -> None:
    populate(do)
    assert do(stats(now=50)) == StatsReply(
        claimed=3, released=3, completed=3, uncertain=3, lapsed=2, expired=0, now=50 * SECOND_MICROS
    )
    assert do(stats(now=86_400)) == StatsReply(
        claimed=3, released=3, completed=3, uncertain=3, lapsed=3, expired=6, now=86_400 * SECOND_MICROS
    )


def test_stats_of_one_application(do: Do) -> None:
    populate(do)
    assert do(stats(namespace="n2", now=50)) == StatsReply(
        claimed=1, released=1, completed=1, uncertain=1, lapsed=0, expired=0, now=50 * SECOND_MICROS
    )
    assert do(stats(namespace="n1", now=86_400)) == StatsReply(
        claimed=2, released=2, completed=2, uncertain=2, lapsed=2, expired=4, now=86_400 * SECOND_MICROS
    )
    assert do(stats(namespace="n3", now=50)) == StatsReply(0, 0, 0, 0, 0, 0, 50 * SECOND_MICROS)


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_an_application_reaps_its_own(do: Do, limit: int) -> None:
    populate(do)
    later = 10 * 86_400
    assert do(stats(namespace="n1", now=later)).expired == 4
    gone = 0
    for _ in range(20):
        gone += do(reap(limit, namespace="n1", now=later))
    assert gone == 4
    assert do(stats(namespace="n1", now=later)).expired == 0
    assert do(stats(namespace="n2", now=later)).expired == 2
    assert do(reap(namespace="n3", now=later)) == 0


@pytest.mark.parametrize("namespace", [None, "n"])
def test_stats_leave_what_was_withdrawn_its_hour(do: Do, namespace: str | None) -> None:
    """Expired records are counted as the reaper would reap them, for one application and for all."""
    assert do(withdraw(do(claim("k", namespace="n", now=0)), now=1)) is True
    for now in (2, 3600):
        assert do(stats(namespace=namespace, now=now)).expired == 0
    assert do(stats(namespace=namespace, now=3601)).expired == 1
    assert do(reap(now=3601)) == 1


@pytest.mark.parametrize("ending", ["completed", "released"])
@pytest.mark.parametrize("born", [0, 1_760_000_000_000_000])
def test_stats_count_the_expired_to_the_microsecond(do: Do, ending: str, born: int) -> None:
    """I12: a record expires at the exact microsecond, in 1970 and today."""
    for offset in range(3):
        owner = do(replace(claim(f"k{offset}", retention=86_400), now=born + offset))
        settle = complete(owner, b"x") if ending == "completed" else release(owner)
        assert do(replace(settle, now=born + offset)) is True
    records = sorted(do.record(f"k{offset}", now=None).expires for offset in range(3))
    for expires in records:
        for now in (expires - 1, expires, expires + 1):
            assert do(Stats(now=now)).expired == sum(each <= now for each in records)


def test_stats_of_an_empty_store(do: Do) -> None:
    assert do(stats(now=5)) == StatsReply(0, 0, 0, 0, 0, 0, 5 * SECOND_MICROS)
