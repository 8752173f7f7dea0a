"""httpx (sync and async) and requests on a real connection: one test for all three."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx
import pytest

from retrysafe.client import Budget, Journal, KeyTooOld, Retries, UnrepeatableBody, operation
from retrysafe.client.httpx import RetryTransport
from retrysafe.core.times import DAY_MICROS
from retrysafe.errors import FingerprintMismatch, StoreUnavailable
from tests.client.ambient import Virtual
from tests.client.faces import BROKEN, FACES, Caller, calling
from tests.client.scripted import Drop, Reply, Script, Silence, problem, refused

BODY = b'{"amount": 500}'
REPLAYED = {"idempotent-replayed": "true"}


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(face: str, server: Script, virtual: Virtual) -> Any:
    """`with client(retries=…) as call:`"""

    def open_client(base: str = "", **options: Any) -> AbstractContextManager[Caller]:
        return calling(face, base or server.url, **{"ambient": virtual.ambient(), **options})

    return open_client


# One key per logical operation --------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble", [Drop("before"), Drop("after"), Drop("middle"), Drop("head"), Reply(500), Reply(503), Reply(429)]
)
def test_a_retry_carries_the_same_key(client: Any, server: Script, trouble: Any) -> None:
    server.then(trouble, trouble)
    with client() as call:
        reply = call("POST", "/payments", content=BODY)
    assert (reply.status, reply.body) == (200, b'{"ok": true}')
    assert server.keys == ["key-1"] * 3
    assert [one.body for one in server.got] == [BODY] * 3
    assert server.done == ["key-1"]
    assert reply.trail is not None
    assert reply.trail[:2] == ("key-1", 3)


def test_two_calls_are_two_operations(client: Any, server: Script) -> None:
    with client() as call:
        call("POST", "/payments", content=BODY)
        call("POST", "/payments", content=BODY)
    assert server.keys == ["key-1", "key-2"]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_other_writes_have_keys_too(client: Any, server: Script, method: str) -> None:
    server.then(Drop("after"))
    with client() as call:
        call(method, "/payments/7")
    assert server.keys == ["key-1", "key-1"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_reads_are_retried_without_a_key(client: Any, server: Script, method: str) -> None:
    server.then(Drop("before"), Reply(503))
    with client() as call:
        assert call(method, "/payments").status == 200
    assert server.keys == [None, None, None]


def test_a_write_without_a_key_is_not_retried(client: Any, server: Script) -> None:
    server.then(Reply(503), Drop("after"))
    with client(retries=Retries(methods=frozenset())) as call:
        assert call("POST", "/payments", content=BODY).status == 503
        with pytest.raises(BROKEN):
            call("POST", "/payments", content=BODY)
    assert server.keys == [None, None]


def test_a_key_of_the_callers_is_used_and_never_exchanged(client: Any, server: Script) -> None:
    server.then(Reply(500), problem(500, "x", False, True))
    with client() as call:
        assert call("POST", "/payments", content=BODY, headers={"Idempotency-Key": '"mine"'}).status == 500
    assert server.keys == ['"mine"', '"mine"']


def test_a_redirected_write_keeps_its_key(server: Script, virtual: Virtual) -> None:
    server.then(Reply(308, {"location": "/payments/"}), Drop("after"))
    transport = RetryTransport(ambient=virtual.ambient())
    with httpx.Client(transport=transport, base_url=server.url, follow_redirects=True) as http:
        assert http.post("/payments", content=BODY).status_code == 200
    assert [(one.path, one.key) for one in server.got] == [("/payments", "key-1"), *[("/payments/", "key-1")] * 2]


def test_transports_inside_of_ours_may_read_answers(server: Script, virtual: Virtual) -> None:
    class Reader(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            response = super().handle_request(request)
            response.read()
            return response

    server.then(problem(500, "wiped", False, True))
    with httpx.Client(transport=RetryTransport(Reader(), ambient=virtual.ambient()), base_url=server.url) as http:
        assert http.post("/payments").json() == {"ok": True}
    assert len(set(server.keys)) == 2


# What the server says ---------------------------------------------------------------------------


def test_in_progress_is_waited_for(client: Any, server: Script, virtual: Virtual) -> None:
    server.then(*[problem(409, "in-progress", True, False, retry_after="2")] * 12)
    with client(retries=Retries(attempts=1), budget=Budget(0)) as call:
        assert call("POST", "/payments", content=BODY).status == 200
    assert set(server.keys) == {"key-1"}
    assert virtual.slept == [2.125] * 12, "Retry-After, and half of a quarter second of jitter"


def test_a_mismatch_is_told_at_once(client: Any, server: Script, virtual: Virtual) -> None:
    server.then(problem(422, "mismatch", False, True))
    with client() as call:
        reply = call("POST", "/payments", content=BODY)
    assert reply.status == 422
    assert b"mismatch" in reply.body
    assert (len(server.got), virtual.slept) == (1, [])


def test_a_stored_failure_is_final(client: Any, server: Script) -> None:
    server.then(Reply(500), Reply(500, REPLAYED))
    with client() as call:
        assert call("POST", "/payments", content=BODY).status == 500
    assert len(server.got) == 2, "the second answer was a replay, which is final"


def test_a_new_key_only_when_the_server_says_that_it_is_safe(client: Any, server: Script) -> None:
    server.then(problem(500, "wiped", False, True), Drop("after"))
    with client() as call:
        reply = call("POST", "/payments", content=BODY)
    first, *rest = server.keys
    assert first == "key-1"
    assert len(set(rest)) == 1
    assert first not in rest
    assert reply.trail is not None
    assert reply.trail.key == rest[0] == server.done[0]


def test_a_named_operation_finds_its_exchanged_key_again(client: Any, server: Script) -> None:
    wiped = problem(500, "wiped", False, True)
    seen = []
    for _ in range(2):
        server.then(wiped)
        with client() as call, operation("order-7"):
            seen.append(call("POST", "/payments", content=BODY).trail)
    assert seen[0] == seen[1], "without a journal: the same way through the same keys"


def test_retry_after_is_capped(client: Any, server: Script, virtual: Virtual) -> None:
    virtual.draws = 0.0
    dated = formatdate(time.time() + 15, usegmt=True)
    server.then(*(Reply(503, {"retry-after": after}) for after in ("9999", "3", dated)))
    with client(retries=Retries(max_retry_after=20)) as call:
        call("POST", "/payments", content=BODY)
    assert virtual.slept[:2] == [20, 3]
    assert 5 < virtual.slept[2] <= 15, "by the Date that the server sends: our own clock is years away"


def test_it_gives_up_and_hands_over_the_last_answer(client: Any, server: Script, virtual: Virtual) -> None:
    server.then(*[Reply(503, {}, b'{"sorry": 1}')] * 9)
    with client(retries=Retries(attempts=3, base=1, cap=60)) as call:
        reply = call("POST", "/payments", content=BODY)
    assert (reply.status, reply.body) == (503, b'{"sorry": 1}')
    assert reply.trail is not None
    assert reply.trail == ("key-1", 3, "answered with 503; gave up after 3 attempts")
    assert virtual.slept == [0.5, 1.0]


def test_it_does_not_sleep_past_the_deadline(client: Any, server: Script, virtual: Virtual) -> None:
    server.then(*[Reply(503, {"retry-after": "10"})] * 9)
    with client(retries=Retries(attempts=9, deadline=25)) as call:
        assert call("POST", "/payments", content=BODY).status == 503
    assert len(virtual.slept) == 2


def test_the_budget_is_shared_by_all_calls_of_a_client(client: Any, server: Script) -> None:
    server.then(*[Reply(503)] * 99)
    with client(budget=Budget(3, per_second=0), retries=Retries(attempts=3)) as call:
        replies = [call("POST", "/payments", content=BODY) for _ in range(3)]
    assert [one.trail.sends for one in replies if one.trail] == [3, 2, 1]
    assert replies[2].trail is not None
    assert "retry budget" in replies[2].trail.why


# Without an answer ------------------------------------------------------------------------------


def test_a_final_failure_names_the_key(client: Any, server: Script) -> None:
    server.then(*[Drop("after")] * 3)
    with client(retries=Retries(attempts=3)) as call, pytest.raises(BROKEN) as caught:
        call("POST", "/payments", content=BODY)
    (note,) = caught.value.__notes__
    assert "POST 127.0.0.1/payments was sent 3 time(s) with idempotency key 'key-1'" in note
    assert "same key" in note


def test_nobody_listens(client: Any) -> None:
    with client(refused(), retries=Retries(attempts=2)) as call, pytest.raises(BROKEN) as caught:
        call("POST", "/payments", content=BODY)
    assert "nothing was sent" in caught.value.__notes__[0]


def test_a_slow_answer_is_asked_for_again(face: str, server: Script, virtual: Virtual) -> None:
    server.then(Silence(), problem(409, "in-progress", True, False))
    stubborn = Retries(attempts=100, deadline=1e9)
    with calling(face, server.url, timeout=0.2, ambient=virtual.ambient(), retries=stubborn) as call:
        assert call("POST", "/payments", content=BODY).status == 200
    assert len(server.keys) >= 3, "a busy machine may be slow a second time"
    assert set(server.keys) == set(server.done) == {"key-1"}


# Streams ----------------------------------------------------------------------------------------


def pieces() -> Iterator[bytes]:
    yield from (b'{"amount":', b" 500}")


async def apieces() -> Any:
    for piece in pieces():
        yield piece


def stream(face: str) -> Any:
    return apieces() if face == "async" else pieces()


def test_a_stream_that_cannot_be_sent_twice_is_refused(client: Any, face: str, server: Script) -> None:
    with client() as call, pytest.raises(UnrepeatableBody, match=r"POST 127\.0\.0\.1/payments.*max_body"):
        call("POST", "/payments", content=stream(face))
    assert server.got == []


def test_or_sent_once_with_a_key(client: Any, face: str, server: Script) -> None:
    server.then(Drop("after"), Reply(503))
    with client(retries=Retries(streams="once")) as call:
        with pytest.raises(BROKEN):
            call("POST", "/payments", content=stream(face))
        assert call("POST", "/payments", content=stream(face)).status == 503
    assert server.keys == ["key-1", "key-2"]
    assert [one.body for one in server.got] == [BODY, BODY]


def test_a_file_of_moderate_length_is_sent_again(client: Any, face: str, server: Script, tmp_path: Path) -> None:
    (tmp_path / "scan").write_bytes(b"x" * 1000)
    server.then(Drop("after"))
    with client() as call, (tmp_path / "scan").open("rb") as scan:
        assert call("POST", "/scans", files={"scan": scan}).status == 200
        assert server.got[0].body == server.got[1].body
        assert b"x" * 1000 in server.got[0].body
        if face != "async":  # httpx takes no plain file there
            scan.seek(0)
            server.then(Drop("after"))
            call("PUT", "/scans/1", content=scan)
            assert [one.body for one in server.got[2:]] == [b"x" * 1000] * 2
    with client(retries=Retries(max_body=100)) as call, (tmp_path / "scan").open("rb") as scan:
        if face != "requests":  # requests has read it already
            with pytest.raises(UnrepeatableBody, match="100 bytes"):
                call("POST", "/scans", files={"scan": scan})


def test_a_large_answer_passes_through_whole(client: Any, server: Script) -> None:
    large = bytes(range(256)) * 4096
    server.then(Reply(200, {}, large))
    with client(retries=Retries(max_answer=1000)) as call:
        assert call("POST", "/exports").body == large


def test_compressed_answers_and_problems_are_understood(client: Any, server: Script) -> None:
    busy = problem(500, "wiped", False, True)
    packed = {"content-encoding": "gzip", "content-type": "application/json"}
    server.then(Reply(500, packed, gzip.compress(busy.body)), Reply(200, packed, gzip.compress(b'{"id": 7}')))
    with client() as call:
        assert call("POST", "/payments").body == b'{"id": 7}'
    assert len(set(server.keys)) == 2


# The journal --------------------------------------------------------------------------------------


def test_the_journal_knows_the_key_before_the_server_does(client: Any, server: Script, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "keys.db")
    server.then(Drop("after"))
    with client(journal=journal, retries=Retries(attempts=1)) as call, operation("order-7"):
        with pytest.raises(BROKEN):
            call("POST", "/payments", content=BODY)
        (open_call,) = journal.unfinished()
        assert open_call.key == server.keys[0]
    with client(journal=journal) as call, operation("order-7"):
        assert call("POST", "/payments", content=BODY).status == 200
    assert journal.unfinished() == []
    assert [(one.sends, one.status) for one in journal.entries("order-7")] == [(2, 200)]
    assert len(set(server.keys)) == len(server.done) == 1
    journal.close()


def test_the_journal_refuses_another_body_and_an_old_key(
    client: Any, server: Script, virtual: Virtual, tmp_path: Path
) -> None:
    def pay(body: bytes) -> None:
        with client(journal=tmp_path / "keys.db") as call, operation("order-7"):
            call("POST", "/payments", content=body, headers={"content-type": "application/json"})

    pay(b'{"amount": 500, "to": "x"}')
    pay(b'{"to":"x","amount":500}')  # the same, written differently
    with pytest.raises(FingerprintMismatch):
        pay(b'{"amount": 501, "to": "x"}')
    virtual.now += DAY_MICROS
    with pytest.raises(KeyTooOld):
        pay(b'{"amount": 500, "to": "x"}')
    assert len(server.got) == 2


def test_what_was_never_sent_is_only_planned(client: Any, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "keys.db")
    here = {"journal": journal, "retries": Retries(attempts=2)}
    with client(refused(), **here) as call, operation("order-7"), pytest.raises(BROKEN):
        call("POST", "/payments", content=BODY)
    assert journal.unfinished() == []
    assert [one.state for one in journal.entries("order-7")] == ["planned"]
    journal.close()


def test_an_exchanged_key_survives_in_the_journal(client: Any, server: Script, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "keys.db")
    server.then(problem(500, "wiped", False, True), Drop("after"))
    with client(journal=journal, retries=Retries(attempts=2)) as call, operation("order-7"), pytest.raises(BROKEN):
        call("POST", "/payments", content=BODY)
    with client(journal=journal) as call, operation("order-7"):
        call("POST", "/payments", content=BODY)
    assert server.keys[0] != server.keys[1] == server.keys[2]
    assert len(server.done) == 1
    journal.close()


def test_without_its_journal_nothing_is_sent(client: Any, server: Script, tmp_path: Path) -> None:
    with client(journal=tmp_path / "missing" / "keys.db") as call, pytest.raises(StoreUnavailable):
        call("POST", "/payments", content=BODY)
    assert server.got == []


def test_an_answer_is_not_lost_with_the_journal(client: Any, server: Script, tmp_path: Path) -> None:
    class Full(Journal):
        def answered(self, id: str, status: int, now: int) -> None:
            raise StoreUnavailable("disk full")

    with client(journal=Full(tmp_path / "keys.db")) as call:
        assert call("POST", "/payments", content=BODY).status == 200
