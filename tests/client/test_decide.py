"""The decisions of `decide`, one by one, without a server or a clock."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.client import RetriesError, problem_name
from retrysafe.client.decide import (
    AnsweredAttempt,
    AttemptState,
    AttemptVerdict,
    FailedAttempt,
    FinishVerdict,
    RetryVerdict,
    RotateVerdict,
    decide,
    parse_problem,
    parse_retry_after,
)
from retrysafe.client.settings import Retries
from retrysafe.engine.problem_documents import Problem
from retrysafe.web import problems
from retrysafe.web.problems import Codes, build_problem_response

RETRIES = Retries(attempts=4, deadline=100, base=1, cap=8, max_retry_after=30)
BROKEN = OSError("gone")


def build_problem(same: bool, new: bool, kind: str = "urn:retrysafe:problem:x") -> bytes:
    return json.dumps({"type": kind, "retry_same_key": same, "safe_new_key": new}).encode()


def verdict(seen: AnsweredAttempt | FailedAttempt, **standing: Any) -> AttemptVerdict:
    return decide(seen, AttemptState(**{"sends": 1, "jitter": 0.5, **standing}), RETRIES)


def answer(status: int, body: bytes = b"", **headers: str) -> AnsweredAttempt:
    return AnsweredAttempt(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


# Final ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 204, 304, 308, 400, 401, 403, 404, 410, 413, 422, 501, 505, 511])
def test_an_answer_that_will_not_change_is_given_to_the_caller(status: int) -> None:
    found = verdict(answer(status))
    assert isinstance(found, FinishVerdict)
    assert found.settled


@pytest.mark.parametrize("status", [409, 422, 500, 503])
def test_a_replay_is_the_last_word_whatever_it_says(status: int) -> None:
    found = verdict(answer(status, build_problem(True, True), idempotent_replayed="true"))
    assert isinstance(found, FinishVerdict)
    assert found.settled


FORMS = ("urn:retrysafe:problem:", "https://retrysafe.readthedocs.io/problems/", "https://docs.example.com/p/", "/p/")
"""Where the name of a problem may stand: behind the older form, and at any address of the pages."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("end", ["", "/"])
def test_the_name_of_a_problem_is_read_from_every_form_of_its_type(form: str, end: str) -> None:
    assert problem_name(f"{form}mismatch{end}") == "mismatch"


def test_other_types_have_a_name_too() -> None:
    assert (problem_name("about:blank"), problem_name(""), problem_name("/")) == ("about:blank", "", "")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("status", [400, 409, 422, 500])
def test_a_mismatch_is_never_retried_and_never_gets_a_new_key(status: int, form: str) -> None:
    found = verdict(answer(status, build_problem(False, True, f"{form}mismatch/")))
    assert isinstance(found, FinishVerdict)


def test_a_certificate_nobody_trusts_is_not_tried_again() -> None:
    found = verdict(FailedAttempt(BROKEN, "hopeless"))
    assert isinstance(found, FinishVerdict)
    assert not found.settled


# Retried ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 599])
def test_passing_failures_keep_the_key(status: int) -> None:
    assert isinstance(verdict(answer(status)), RetryVerdict)


@pytest.mark.parametrize("reach", ["unsent", "unclear"])
def test_broken_connections_keep_the_key(reach: Any) -> None:
    assert isinstance(verdict(FailedAttempt(BROKEN, reach)), RetryVerdict)


def test_in_progress_does_not_count_as_a_failure() -> None:
    busy = answer(409, build_problem(True, False), retry_after="2")
    found = verdict(busy, sends=50, busy=49)
    assert isinstance(found, RetryVerdict)
    assert found.busy
    assert found.after == 2.5, "what the server asks for, and half of the base as jitter"
    assert isinstance(verdict(busy, sends=50, busy=49, elapsed=98), FinishVerdict), "only the deadline ends it"


def test_stripes_way_to_say_in_progress() -> None:
    body = json.dumps({"error": {"type": "idempotency_error", "code": "idempotency_key_in_use"}}).encode()
    found = verdict(answer(409, body))
    assert isinstance(found, RetryVerdict)
    assert found.busy
    bare = verdict(answer(409))
    assert isinstance(bare, RetryVerdict)
    assert not bare.busy, "a bare 409 may be a refusal"


@pytest.mark.parametrize(("value", "kind"), [("true", RetryVerdict), ("false", FinishVerdict)])
@pytest.mark.parametrize("status", [409, 429, 500, 400])
def test_stripe_should_retry_is_obeyed(value: str, kind: type, status: int) -> None:
    assert isinstance(verdict(answer(status, stripe_should_retry=value)), kind)


def test_it_ends_after_the_attempts_and_before_the_deadline() -> None:
    assert isinstance(verdict(answer(500), sends=3), RetryVerdict)
    last = verdict(answer(500), sends=4)
    assert last == FinishVerdict("answered with 500; gave up after 4 attempts")
    assert isinstance(verdict(answer(500), elapsed=99.4), RetryVerdict)
    late = verdict(answer(500), elapsed=99.6)
    assert isinstance(late, FinishVerdict)
    assert "deadline of 100 s" in late.why
    assert not late.settled, "a 500 that was given up on is not the server's last word"


# Problems ---------------------------------------------------------------------------------------


def test_only_safe_new_key_allows_a_new_key() -> None:
    assert isinstance(verdict(answer(500, build_problem(False, True))), RotateVerdict)
    assert isinstance(verdict(answer(500, build_problem(True, True))), RetryVerdict), (
        "the same key is as good, and cheaper to reason about"
    )
    final = verdict(answer(500, build_problem(False, False)))
    assert isinstance(final, FinishVerdict)
    assert final.settled


@pytest.mark.parametrize("standing", [{"own_key": False}, {"rotations": 1}])
def test_a_key_is_not_exchanged_when_it_is_the_callers_or_was_before(standing: dict[str, Any]) -> None:
    assert isinstance(verdict(answer(500, build_problem(False, True)), **standing), FinishVerdict)


@pytest.mark.parametrize("problem", problems.ALL_PROBLEMS, ids=lambda one: one.anchor)
def test_what_our_own_server_says_is_obeyed(problem: Problem) -> None:
    sent = build_problem_response(problem, Codes(), retry_after=1)
    found = verdict(AnsweredAttempt(sent.status, {name.lower(): value for name, value in sent.headers}, sent.body))
    assert isinstance(found, RetryVerdict) == problem.retry_same_key
    assert not isinstance(found, RotateVerdict), "none of ours is a 5xx that surely did not happen"


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{", b'{"retry_same_key": "yes"}', b"\xff{", b'{"a":' * 5000, b"{" + b" " * 9]
)
def test_bodies_that_say_nothing_about_keys(body: bytes) -> None:
    assert parse_problem(AnsweredAttempt(500, {}, body)) is None
    assert isinstance(verdict(answer(500, body)), RetryVerdict)


# Without a key ----------------------------------------------------------------------------------


def test_reads_are_retried_for_what_passes_and_for_nothing_else() -> None:
    for status in (429, 500, 503):
        assert isinstance(verdict(answer(status), keyed=False), RetryVerdict)
    for status in (404, 409, 422):
        assert isinstance(verdict(answer(status), keyed=False), FinishVerdict)


def test_what_cannot_be_repeated_is_repeated_only_if_nothing_was_sent() -> None:
    assert isinstance(verdict(FailedAttempt(BROKEN, "unsent"), repeatable=False), RetryVerdict)
    assert isinstance(verdict(FailedAttempt(BROKEN, "unclear"), repeatable=False), FinishVerdict)
    assert isinstance(verdict(answer(503), repeatable=False), FinishVerdict)


# Delays -----------------------------------------------------------------------------------------


def waits(seen: AnsweredAttempt | FailedAttempt, **standing: Any) -> float:
    found = decide(seen, AttemptState(**{"sends": 1, **standing}), Retries(attempts=99, base=1, cap=8, deadline=1e9))
    assert isinstance(found, RetryVerdict)
    return found.after


def test_full_jitter_doubles_up_to_the_cap() -> None:
    assert [waits(answer(500), sends=n, jitter=0.999) for n in (1, 2, 3, 4, 5, 98)] == [
        0.999,
        1.998,
        3.996,
        *[7.992] * 3,
    ]
    assert waits(answer(500), sends=5, jitter=0.0) == 0, "down to zero: that is what full means"


def test_retry_after_in_seconds_is_kept_and_capped() -> None:
    assert waits(answer(503, retry_after="7"), jitter=0) == 7
    assert waits(answer(503, retry_after="86400"), jitter=0) == 60


DATE = "Sun, 06 Nov 1994 08:49:37 GMT"
AT = 784111777.0


def test_retry_after_as_a_date() -> None:
    headers = {"retry-after": DATE}
    assert parse_retry_after(headers, AT - 10) == 10
    assert parse_retry_after(headers, AT + 10) == 0, "in the past: at once"
    by_server = {**headers, "date": "Sun, 06 Nov 1994 08:49:07 GMT"}
    assert parse_retry_after(by_server, AT + 9_999) == 30, "by the server's own clock, ours may be wrong"


@pytest.mark.parametrize("text", ["", "soon", "-1", "1e9", "0x1", "Sun, 99 Nov 1994 08:49:37 GMT", "1 2", "²"])
def test_a_retry_after_that_cannot_be_read_is_none(text: str) -> None:
    assert parse_retry_after({"retry-after": text}, 0) is None


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_header_breaks_it(text: str, date: str) -> None:
    found = parse_retry_after({"retry-after": text, "date": date}, 0)
    assert found is None or found >= 0


@given(
    status=st.integers(400, 599),
    body=st.sampled_from(
        [
            b"",
            build_problem(True, False),
            build_problem(False, True),
            build_problem(True, True),
            build_problem(False, False),
        ]
    ),
    draw=st.floats(0, 1, exclude_max=True),
    sends=st.integers(1, 9),
    elapsed=st.floats(0, 200),
)
def test_a_new_key_needs_the_servers_word_and_waiting_stays_within_the_deadline(
    status: int, body: bytes, draw: float, sends: int, elapsed: float
) -> None:
    found = verdict(answer(status, body), jitter=draw, sends=sends, elapsed=elapsed)
    if isinstance(found, RotateVerdict):
        assert body == build_problem(False, True)
    if not isinstance(found, FinishVerdict):
        assert found.after >= 0
        assert elapsed + found.after <= RETRIES.deadline


# Settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting", [{"attempts": 0}, {"base": -1}, {"deadline": float("nan")}, {"streams": "maybe"}, {"max_body": 1.5}]
)
def test_impossible_settings_are_named(setting: dict[str, Any]) -> None:
    with pytest.raises(RetriesError, match=next(iter(setting))):
        Retries(**setting)


def test_durations_may_be_timedeltas() -> None:
    assert Retries(deadline=timedelta(minutes=1)).deadline == 60  # type: ignore[arg-type]  # welcome at the edge
