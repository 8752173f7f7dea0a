"""Keys belong to a principal: S1 to S4, S22, S31."""

from __future__ import annotations

from tests.web.apps.reference import CANARY
from tests.web.conformance.targets import ALICE, BOB, Target, new_key
from tests.web.conformance.test_table import is_problem

FRESH = "token-alice-fresh"
EVERYBODY = {ALICE: ("alice", True), BOB: ("bob", True)}


def test_s3_two_tenants_share_nothing(target: Target) -> None:
    key = new_key()
    alice, bob = target.post("/payments", key), target.post("/payments", key, token=BOB, content=b"{}")
    assert alice.json()["account"] == "alice"
    assert bob.json()["account"] == "bob"
    assert "idempotent-replayed" not in bob.headers
    assert target.post("/payments", key, token=BOB, content=b"{}").content == bob.content
    assert target.post("/payments", key).content == alice.content
    assert target.executions(key) == 2


def test_s3_one_account_with_two_tokens_is_one_tenant(target: Target) -> None:
    key = new_key()
    target.tokens({**EVERYBODY, FRESH: ("alice", True)})
    first, again = target.post("/payments", key), target.post("/payments", key, token=FRESH)
    assert first.content == again.content
    assert target.executions(key) == 1


def test_s4_a_replay_needs_credentials(target: Target) -> None:
    """A bug of similar packages: another client received the first client's answer."""
    key = new_key()
    first = target.post("/payments", key)
    for token in (None, "token-unknown"):
        refused = target.post("/payments", key, token=token)
        assert refused.status_code == 401
        assert first.json()["id"] not in refused.text
        assert "idempotent-replayed" not in refused.headers


def test_s4_a_replay_after_the_permission_was_revoked_is_refused(target: Target) -> None:
    key = new_key()
    first = target.post("/payments", key)
    target.tokens({**EVERYBODY, ALICE: ("alice", False)})
    try:
        refused = target.post("/payments", key)
    finally:
        target.tokens(EVERYBODY)
    assert refused.status_code == 403
    assert first.json()["id"] not in refused.text
    assert target.post("/payments", key).content == first.content, "the refusal was not stored"
    assert target.executions(key) == 1


def test_s4_an_expired_tokens_401_is_not_replayed_to_the_fresh_one(target: Target) -> None:
    key = new_key()
    expired = target.post("/payments", key, token="token-expired")
    target.tokens({**EVERYBODY, FRESH: ("alice", True)})
    assert expired.status_code == 401
    assert target.post("/payments", key, token=FRESH).status_code == 201
    assert target.executions(key) == 1


def test_answers_about_the_attempt_are_never_stored(target: Target) -> None:
    for path, status in (("/late-401", 401), ("/limited", 429)):
        key = new_key()
        first, again = (target.post(path, key) for _ in range(2))
        assert first.status_code == again.status_code == status
        assert first.content != again.content
        assert target.executions(key) == 2


def test_a_403_of_the_handler_is_an_answer(target: Target) -> None:
    key = new_key()
    first, again = (target.post("/late-403", key) for _ in range(2))
    assert first.status_code == again.status_code == 403
    assert first.content == again.content
    assert target.executions(key) == 1


def test_s22_absent_and_another_tenants_key_look_alike(target: Target) -> None:
    """The same status, header names and length, whether or not another client uses the key."""
    used, unused = new_key(), new_key()
    target.post("/payments", used)
    foreign, absent = (target.post("/payments", key, token=BOB) for key in (used, unused))
    assert foreign.status_code == absent.status_code
    assert list(foreign.headers) == list(absent.headers)
    assert len(foreign.content) == len(absent.content)


def test_the_first_500_equals_the_replayed_500_and_s31_shows_nothing(target: Target) -> None:
    key = new_key()
    # On a connection each: a server closes it after an error, and a client may be quicker with its next request.
    first, again = (target.post("/fail", key, headers={"Connection": "close"}) for _ in range(2))
    assert first.status_code == again.status_code == 500
    assert first.content == again.content
    assert first.headers["content-type"] == again.headers["content-type"]
    assert again.headers["idempotent-replayed"] == "true"
    for told in (first, again):
        assert CANARY not in told.text
        assert "Traceback" not in told.text
    assert target.executions(key) == 1
    target.wait_for(lambda: CANARY in target.log())  # the error reporter got it


def test_s31_our_own_500_is_a_problem(target: Target) -> None:
    """For an application without an error page of its own."""
    told = target.post("/fail", new_key(), headers={"Connection": "close"})
    if told.headers["content-type"] == "application/problem+json":
        assert is_problem(told, 500, "failed")
        assert told.json()["safe_new_key"] is False
