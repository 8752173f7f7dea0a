"""The hierarchy of errors: as drawn, complete, and with messages that name the value and the fix."""

from __future__ import annotations

import inspect
import re
from typing import get_args

import pytest

from retrysafe import errors
from retrysafe.core.times import SECOND_MICROS
from retrysafe.core.urls import safe_url

CLASSES = [
    found
    for found in vars(errors).values()
    if inspect.isclass(found) and issubclass(found, errors.RetrySafeError) and found.__module__ == errors.__name__
]
LEAVES = [found for found in CLASSES if not any(other.__bases__[0] is found for other in CLASSES)]


def drawn() -> set[tuple[str, str]]:
    """(parent, child) pairs of the tree in the module's docstring."""
    pairs, path = set(), []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^ {4}((?:[│ ] {3})*)(?:[├└]── )?([A-Z]\w+)", line)
        if found is None or ("──" not in line and found[2] != "RetrySafeError"):
            continue
        depth = len(found[1]) // 4 + ("──" in line)
        path[depth:] = [found[2]]
        if depth:
            pairs.add((path[depth - 1], found[2]))
    return pairs


def test_the_tree_in_the_docstring_is_the_real_one() -> None:
    assert drawn() == {(found.__bases__[0].__name__, found.__name__) for found in CLASSES} - {
        ("Exception", "RetrySafeError")
    }


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.__name__)
def test_each_says_whose_it_is_whether_to_retry_and_where_it_is_explained(found: type[errors.RetrySafeError]) -> None:
    assert found.blame in get_args(errors.Blame)
    assert isinstance(found.retryable, bool)
    assert 400 <= found.status < 600
    assert re.fullmatch(r"[a-z][a-z-]*", found.anchor)


def test_anchors_are_unique() -> None:
    anchors = [found.anchor for found in CLASSES]
    assert len(set(anchors)) == len(anchors)


def test_whoever_may_retry_is_not_to_blame() -> None:
    for found in CLASSES:
        if found.retryable:
            assert found.blame in ("nobody", "operator")
            assert found.status in (409, 503) or found is errors.OutcomeUnrecorded


def test_the_statuses_of_the_http_contract() -> None:
    """What an HTTP layer answers, as docs/reference/http.md says."""
    assert errors.MissingKey.status == errors.MalformedKey.status == 400
    assert errors.InProgress.status == 409
    assert errors.FingerprintMismatch.status == 422
    assert errors.OutcomeUnknown.status == 500
    assert errors.StoreUnavailable.status == errors.StoreUnclear.status == 503


MOMENT = 1_763_208_003 * SECOND_MICROS
MESSAGES: list[tuple[errors.RetrySafeError, list[str]]] = [
    (errors.PolicyError("lease", -1, "give at least 0.05 s"), ["lease=-1", "give at least"]),
    (errors.MissingDriver("Redis", "redis", "redis"), ["'redis'", "pip install 'retrysafe[redis]'"]),
    (errors.TemplateError("{x", "close it"), ["'{x'", "close it"]),
    (errors.ScopeRequired(""), ["''", "pass what identifies"]),
    (errors.ResultNotStorable("app.pay", "a socket"), ["app.pay", "a socket", "codec="]),
    (errors.ResultNotStorable("app.pay", "a socket", rolled_back=True), ["app.pay", "nothing happened", "codec="]),
    (errors.NestedTransaction("the session", "commit it first"), ["the session", "commit it first"]),
    (errors.TransactionSplit("k-1"), ["'k-1'", "Leave commit and rollback to retrysafe"]),
    (errors.NotSameDatabase("aaaaaaaaaa", "bbbbbbbbbb"), ["aaaaaaaa", "bbbbbbbb", "Pass a connection"]),
    (errors.NoAnswer("k-1"), ["'k-1'", "Set tx.answer"]),
    (errors.RolledBack("k-1", "deadlock"), ["'k-1'", "deadlock", "run it again with the same key"]),
    (errors.NotFinished("order@1", "k-1", "charged", "timeout"), ["order@1", "'k-1'", "'charged'", "timeout", "retry"]),
    (errors.NotDone("k-1", "failed", " (it broke)"), ["'k-1'", "is failed (it broke)", "enqueue it again"]),
    (errors.OperationChanged("order@1", "no step 'pay'"), ["order@1", "no step 'pay'", "retry with the same key"]),
    (errors.MissingKey(), ["Idempotency-Key", "send one random key"]),
    (errors.MalformedKey("a b", "a space"), ["'a b'", "a space", "send 1 to 255"]),
    (errors.FingerprintMismatch("k-1", MOMENT), ["'k-1'", "2025-11-15T12:00:03Z", "send a new key"]),
    (errors.VerificationError("stripe", "no signature"), ["stripe", "no signature", "check the signing secret"]),
    (errors.InProgress("k-1", 1_500_000), ["'k-1'", "1.5 s", "retry with the same key"]),
    (errors.RunOver("k-1", "ab" * 16, MOMENT), ["'k-1'", "abababab", "2025-11-15T12:00:03Z", "name the run"]),
    (errors.NotUncertain("k-1", "claimed", 2, "why"), ["'k-1'", "claimed", "attempt 2", "why", "Look at it again"]),
    (errors.OutcomeUnknown("k-1", MOMENT, "died"), ["'k-1'", "2025-11-15T12:00:03Z", "died", "retrysafe keys resolve"]),
    (errors.OutcomeUnrecorded("k-1", OSError("no route")), ["'k-1'", "OSError", "ask again with this one"]),
    (errors.RunOver("k-1", "ab" * 16, MOMENT), ["'k-1'", "abababab", "2025-11-15T12:00:03Z", "Look at the key again"]),
    (errors.NotUncertain("k-1", "completed", 2, "done"), ["'k-1'", "completed", "attempt 2", "Look at it again"]),
    (errors.AnswerGone("k-1", "too_large"), ["'k-1'", "too_large", "Look the result up"]),
    (errors.StoredFailure("app.pay", "Declined", "no money"), ["app.pay", "Declined", "no money", "use another key"]),
    (errors.LeaseLost("k-1", 3), ["'k-1'", "attempt 3", "stop"]),
    (errors.StoreUnreachable("nobody listens at 127.0.0.1:1", node="a"), ["127.0.0.1:1"]),
    (errors.SchemaMissing("no table", "sqlite:///x.db"), ["no table", "retrysafe migrate sqlite:///x.db"]),
    (errors.SchemaRefused("version 9", "pip install -U retrysafe"), ["version 9", "pip install -U retrysafe"]),
    (
        errors.CorruptRecord(b"\xab" * 32, "cut off"),
        ["abababab", "cut off", "restore the record", "erased from Python"],
    ),
]


@pytest.mark.parametrize(("error", "parts"), MESSAGES, ids=lambda item: type(item).__name__)
def test_messages_name_the_value_and_the_fix(error: errors.RetrySafeError, parts: list[str]) -> None:
    assert [part for part in parts if part not in str(error)] == []


def test_every_class_with_a_message_of_its_own_is_tried_here() -> None:
    own = {found for found in CLASSES if "__init__" in vars(found)}
    assert own == {type(error) for error, _ in MESSAGES}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:hunter2@host:5432/db",
        "postgresql://user:hunter2@host/db?application_name=x",
        "redis://:hunter2@host:6379/0",
        "redis://:hunter2@[::1]:6379/0",
        "postgresql://user:a/b#c?hunter2@host/db",
        "postgresql://user:a@hunter2@host/db",
        "postgresql://host/db?user=u&password=hunter2",
        "postgresql://host/db?sslpassword=hunter2&user=u",
        "postgresql://u:x@host/db?PASSWORD=hunter2",
        "user:hunter2@host/db",
        "redis://user:hunter2@[",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    assert "hunter2" not in safe_url(url)
    assert "***" in safe_url(url)
    assert "hunter2" not in str(errors.SchemaMissing("no table", url))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory://",
        "memory://name",
        "sqlite:///app.db",
        "sqlite:////a/b.db?table=x",
        "postgresql://user@host/db",
        "x",
    ],
)
def test_a_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert safe_url(url) == url


def test_what_other_code_may_finish_is_worth_a_retry() -> None:
    assert (errors.OperationChanged.status, errors.OperationChanged.retryable) == (503, True)


def test_usage_errors_are_value_errors_and_a_missing_driver_an_import_error() -> None:
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.MissingDriver, ImportError)
    assert issubclass(errors.MalformedKey, ValueError)
