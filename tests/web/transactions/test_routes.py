"""strength="transaction": the handler's writes and its answer are one commit, on its own connection."""

from __future__ import annotations

import pytest

from retrysafe import Policy
from retrysafe.core.jobs import ListJobs
from retrysafe.core.ops import List
from retrysafe.core.records import Record
from retrysafe.core.states import State
from tests.opening import unique
from tests.transactions.rigs import COMMIT
from tests.web.frameworks.calling import is_problem, is_replay
from tests.web.transactions.shops import EVENTS, Shop, Told, raising

RELEASE = Policy(failures="release")


def records(shop: Shop) -> list[Record]:
    return list(shop.world.safe.execute(List()).records)


def counted(shop: Shop) -> dict[str, int]:
    return shop.world.safe.counters


# Once ---------------------------------------------------------------------------------------------


def test_the_answer_commits_with_the_work_and_is_replayed(shop: Shop) -> None:
    shop.open()
    first, again = shop.post(), shop.post()
    assert (first.status_code, first.json()) == (201, {"paid": True})
    assert is_replay(first, again)
    assert (shop.world.effects(), shop.desk.calls) == (["a"], ["a"])
    assert counted(shop) == {"new": 1, "completed": 1, "replayed": 1}
    (record,) = records(shop)
    assert (record.state, record.attempt, record.scope, record.target) == (
        State.COMPLETED, 1, "alice", "POST /pay",
    )  # fmt: skip


def test_headers_that_belong_to_one_response_are_not_kept(shop: Shop) -> None:
    shop.open()
    headers = (*Told().headers, ("Set-Cookie", "session=1"), ("X-Request-Id", "7"))
    shop.desk.then = [lambda: Told(headers=headers)]
    first, again = shop.post(), shop.post()
    assert (first.headers["set-cookie"], first.headers["x-kept"]) == ("session=1", "yes")
    assert (again.headers["x-kept"], again.content) == ("yes", first.content)
    assert "set-cookie" not in again.headers
    assert "x-request-id" not in again.headers


def test_another_request_under_the_key_is_refused(shop: Shop) -> None:
    shop.open()
    shop.post()
    assert is_problem(shop.post(value="b"), 422, "mismatch")
    assert shop.world.effects() == ["a"]


def test_two_tenants_do_not_share_a_key(shop: Shop) -> None:
    shop.open()
    assert [shop.post(value=who, who=who).status_code for who in ("alice", "bob")] == [201, 201]
    assert shop.world.effects() == ["alice", "bob"]


def test_without_a_key_nothing_runs(shop: Shop) -> None:
    shop.open()
    assert is_problem(shop.post(key=None), 400, "missing-key")
    assert shop.desk.calls == []


def test_a_minted_key_gets_a_transaction_too(shop: Shop) -> None:
    policy = Policy(mode="generate")
    shop.open(policy=policy, routes={"POST /pay": policy})
    told = shop.post(key=None)
    assert (told.status_code, shop.world.effects()) == (201, ["a"])
    assert told.headers["idempotency-key"]


# Jobs ---------------------------------------------------------------------------------------------


def list_topics(shop: Shop) -> list[str]:
    """The topics of this test's own jobs: worlds of one server share their outbox."""
    staged = shop.world.safe.execute(ListJobs(limit=10_000))
    return sorted(each.job.topic for each in staged if each.job.topic in shop.desk.topics)


def test_jobs_of_a_handler_commit_with_its_work(shop: Shop) -> None:
    shop.open()
    shop.desk.topics = sorted(unique(name) for name in ("receipt", "mail"))
    assert [shop.post().status_code, shop.post().status_code] == [201, 201]
    assert list_topics(shop) == shop.desk.topics


def test_jobs_of_a_handler_that_fails_are_rolled_back_with_its_work(shop: Shop) -> None:
    shop.open()
    shop.desk.topics, shop.desk.then = [unique("receipt")], [raising(RuntimeError("afterwards"))]
    assert shop.post().status_code == 500
    assert (list_topics(shop), shop.world.effects()) == ([], [])


# Failures -----------------------------------------------------------------------------------------


def test_what_a_refusing_handler_wrote_is_rolled_back_and_its_answer_kept(shop: Shop) -> None:
    """A declined card is an answer; the half of the order that was written before it was declined is not."""
    shop.open()
    shop.desk.then = [lambda: shop.desk.refuse(410)]
    first, again = shop.post(), shop.post()
    assert first.status_code == 410
    assert is_replay(first, again)
    assert (shop.world.effects(), shop.desk.calls) == ([], ["a"])
    assert counted(shop) == {"new": 1, "completed": 1, "replayed": 1}


def test_an_error_answer_that_is_returned_commits_with_the_work(shop: Shop) -> None:
    """It was the handler's own decision to write and to answer so."""
    shop.open()
    shop.desk.then = [lambda: Told(409)]
    first, again = shop.post(), shop.post()
    assert (first.status_code, shop.world.effects()) == (409, ["a"])
    assert is_replay(first, again)


def test_an_exception_leaves_nothing_but_its_answer(shop: Shop) -> None:
    shop.open()
    shop.desk.then = [raising(ValueError("boom"))]
    first, again = shop.post(), shop.post()
    assert first.status_code == 500
    assert is_replay(first, again)
    assert (shop.world.effects(), shop.desk.calls) == ([], ["a"])


@pytest.mark.parametrize("how", ["raised", "refused", "returned"])
def test_a_failure_that_is_not_final_leaves_nothing_at_all(shop: Shop, how: str) -> None:
    shop.open(policy=RELEASE)
    then = {"raised": raising(ValueError("boom")), "refused": lambda: shop.desk.refuse(503)}
    shop.desk.then = [then.get(how, lambda: Told(503))]
    failed = shop.post()
    assert failed.status_code == (500 if how == "raised" else 503)
    assert (shop.world.effects(), records(shop)) == ([], [])
    assert counted(shop) == {"new": 1, "released": 1}
    assert shop.post().status_code == 201
    assert shop.world.effects() == ["a"]


def test_an_answer_about_the_attempt_is_not_kept(shop: Shop) -> None:
    shop.open()
    shop.desk.then = [lambda: Told(429)]
    assert shop.post().status_code == 429
    assert (shop.world.effects(), records(shop)) == ([], [])
    assert shop.post().status_code == 201


@pytest.mark.parametrize("how", ["raised", "timed out", "refused", "returned"])
def test_a_commit_in_the_middle_of_a_handler_that_then_fails_makes_it_unknown_too(shop: Shop, how: str) -> None:
    """If it counted as a plain failure, the client's retry would write "a" a second time."""
    shop.open(policy=RELEASE)
    shop.desk.then_sql = [COMMIT]
    then = {
        "raised": raising(ValueError("boom")),
        "timed out": raising(TimeoutError("mail server")),
        "refused": lambda: shop.desk.refuse(503),
    }
    shop.desk.then = [then.get(how, lambda: Told(503))]
    shop.post()
    assert [record.state for record in records(shop)] == [State.UNCERTAIN]
    assert is_problem(shop.post(), 500, "outcome-unknown")
    assert shop.world.effects() == ["a"]


def test_a_commit_before_the_connection_is_lost_makes_it_unknown_too(shop: Shop) -> None:
    """The connection cannot say any more what was committed on it; the store's own one can."""
    if not shop.world.url.startswith("postgresql"):
        pytest.skip("a file has no connection that is lost")
    shop.open(policy=RELEASE)
    shop.desk.then_sql = [COMMIT, "SELECT pg_terminate_backend(pg_backend_pid())"]
    shop.post()
    assert [record.state for record in records(shop)] == [State.UNCERTAIN]
    assert is_problem(shop.post(), 500, "outcome-unknown")
    assert shop.world.effects() == ["a"]


def test_a_commit_in_the_middle_makes_the_outcome_unknown(shop: Shop) -> None:
    """Part of the work has no receipt and cannot be rolled back, so the client is told."""
    shop.open()
    shop.desk.then_sql = [COMMIT]
    assert is_problem(shop.post(), 500, "outcome-unknown")
    assert is_problem(shop.post(), 500, "outcome-unknown")
    assert [record.state for record in records(shop)] == [State.UNCERTAIN]
    assert shop.world.effects() == ["a"]


# Answers that cannot be kept ----------------------------------------------------------------------


def test_an_answer_that_is_too_large_leaves_a_tombstone_with_the_work(shop: Shop) -> None:
    shop.open(policy=Policy(max_answer=100))
    shop.desk.then = [lambda: Told(body=b"x" * 101)]
    first, again = shop.post(), shop.post()
    assert (first.status_code, first.content) == (201, b"x" * 101)
    assert is_problem(again, 410, "answer-gone")
    assert (shop.world.effects(), shop.desk.calls) == (["a"], ["a"])


def test_a_stream_leaves_a_tombstone_with_the_work(shop: Shop) -> None:
    shop.open()
    shop.desk.then = [lambda: Told(200, b"data: 1\n\n", (("Content-Type", EVENTS),))]
    first, again = shop.post(), shop.post()
    assert (first.status_code, first.content) == (200, b"data: 1\n\n")
    assert is_problem(again, 410, "answer-gone")
    assert (shop.world.effects(), shop.desk.calls) == (["a"], ["a"])
