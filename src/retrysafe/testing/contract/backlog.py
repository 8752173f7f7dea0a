"""What operators ask: how much is open, and how old the oldest is, per kind and target."""

from __future__ import annotations

import pytest

from retrysafe.core.backlog import Backlog, BacklogReply, OpenGroup
from retrysafe.core.times import SECOND_MICROS
from retrysafe.testing.builders import advance, claim, complete, release, resolve, suspect, to_micros, withdraw
from retrysafe.testing.driver import Do


def backlog(*, namespace: str | None = None, limit: int = 1000, now: float = 0, examine: int = 0) -> Backlog:
    return Backlog(namespace, limit, to_micros(now), examine)


@pytest.fixture(autouse=True)
def needs_backlog(do: Do) -> None:
    if do.capabilities.backlog == "none":
        pytest.skip("the store does not declare Capabilities.backlog")


def test_an_empty_store_has_no_backlog(do: Do) -> None:
    assert do(backlog(now=5)) == BacklogReply((), 0, 0, False, 5 * SECOND_MICROS)


def test_open_records_are_counted_by_kind_and_target_with_the_oldest(do: Do) -> None:
    pay = {"target": "POST /pay", "on_lapse": "uncertain"}
    do(claim("alive", lease=1000, now=20, **pay))  # type: ignore[arg-type]
    do(claim("older", lease=1000, now=10, **pay))  # type: ignore[arg-type]
    do(claim("silent", lease=5, now=30, **pay))  # type: ignore[arg-type]
    marked = do(claim("marked", lease=1000, now=40, **pay))  # type: ignore[arg-type]
    assert do(suspect(marked, now=41))
    job = do(claim("job", kind="job", target="send", lease=5, on_lapse="rerun", now=50))
    assert do(advance(job, lease=5, now=50))
    groups = do(backlog(now=100)).groups
    assert groups == (
        OpenGroup("http", "POST /pay", 2, 0, 2, 1, 10 * SECOND_MICROS, 30 * SECOND_MICROS),
        OpenGroup("job", "send", 1, 1, 0, 0, 50 * SECOND_MICROS, 0),
    )
    early = do(backlog(now=34)).groups[0]
    assert (early.in_progress, early.uncertain, early.unmarked) == (3, 1, 0), "a live guard is in progress"


def test_finished_work_is_no_backlog(do: Do) -> None:
    for number, settle in enumerate((complete, release, withdraw)):
        owner = do(claim(f"k{number}", now=10))
        assert do(settle(owner, now=11))
    unknown = do(claim("resolved", lease=1, now=10))
    assert do(resolve(unknown, b"done", now=12))
    assert do(backlog(now=20)) == BacklogReply((), 0, 0, False, 20 * SECOND_MICROS)


def test_what_is_due_for_reaping_is_counted_with_the_oldest(do: Do) -> None:
    for key, retention in (("a", 5_000), ("b", 9_000), ("c", 50_000)):
        owner = do(claim(key, retention=retention, now=10))
        assert do(complete(owner, now=11))
    assert do(backlog(now=5_009))[1:3] == (0, 0)
    assert do(backlog(now=5_010))[1:3] == (1, 5_010 * SECOND_MICROS)
    assert do(backlog(now=9_010))[1:3] == (2, 5_010 * SECOND_MICROS)


def test_a_withdrawn_record_is_not_due_within_its_hour(do: Do) -> None:
    assert do(withdraw(do(claim("k", now=10)), now=11))
    assert do(backlog(now=12)).reapable == 0
    assert do(backlog(now=3_611)).reapable == 1


def test_namespaces_are_walls(do: Do) -> None:
    for number in range(3):
        do(claim(f"k{number}", namespace=("n1", "n2")[number == 2], lease=1000, now=10 + number))
    gone = do(claim("gone", namespace="n2", retention=5_000, now=10))
    assert do(complete(gone, now=11))
    first, second = do(backlog(namespace="n1", now=9_000)), do(backlog(namespace="n2", now=9_000))
    assert (first.uncertain, first.oldest_uncertain, first.reapable) == (2, 10 * SECOND_MICROS, 0)
    assert (second.uncertain, second.oldest_uncertain, second.reapable) == (1, 12 * SECOND_MICROS, 1)
    assert do(backlog(now=9_000)).uncertain == 3
    assert do(backlog(namespace="n3", now=9_000)).groups == ()


def test_the_limit_is_said(do: Do) -> None:
    for number in range(6):
        do(claim(f"k{number}", lease=5 if number == 3 else 1000, now=10))
    cut = do(backlog(limit=4, now=100))
    assert cut.truncated
    assert cut.in_progress + cut.uncertain == 4
    assert not do(backlog(limit=7, now=100)).truncated


def test_what_others_have_open_hides_nothing_silently(do: Do) -> None:
    """A store may end before it has passed over the records of other applications. It says so then."""
    for number in range(6):
        do(claim(f"k{number}", namespace="n2", lease=5, now=10))
    do(claim("own", namespace="n1", lease=50, now=10))
    for number in range(3):
        due = do(claim(f"due-{number}", namespace="n2", retention=5_000, now=10))
        assert do(complete(due, now=11))
    cut = do(backlog(namespace="n1", limit=2, now=100))
    assert cut.truncated or cut.uncertain == 1
    for examine in (2, 4, 100):
        found = do(backlog(namespace="n1", now=9_000, examine=examine))
        assert found.truncated or (found.uncertain, found.reapable) == (1, 0)
        assert found.uncertain <= 1
    assert not do(backlog(namespace="n1", now=9_000, examine=100)).truncated
    whole = do(backlog(namespace="n2", now=9_000, examine=4))
    assert whole.truncated or (whole.uncertain, whole.reapable) == (6, 3)
