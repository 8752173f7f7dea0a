"""Each state of a record with each kind of request, over HTTP. Lapsed leases are in test_crash.py."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from retrysafe.engine.problem_documents import build_page_address
from tests.web.conformance.targets import Target, new_key


def is_problem(response: object, status: int, name: str) -> bool:
    told = response.json()  # type: ignore[attr-defined]
    headers = response.headers  # type: ignore[attr-defined]
    assert response.status_code == status == told["status"], response  # type: ignore[attr-defined]
    assert headers["content-type"] == "application/problem+json"
    assert headers["cache-control"] == "no-store"
    assert headers["link"] == f'<{told["type"]}>; rel="describedby"'
    assert told["type"] == build_page_address(name)
    assert isinstance(told["retry_same_key"], bool)
    assert isinstance(told["safe_new_key"], bool)
    return True


def test_first_runs_then_replays_byte_for_byte(target: Target) -> None:
    key = new_key()
    first, again = target.post("/payments", key), target.post("/payments", key)
    assert first.status_code == again.status_code == 201
    assert first.content == again.content
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert target.executions(key) == 1


def test_completed_with_another_request_is_a_mismatch(target: Target) -> None:
    """I8: every part of the request is compared; the stored answer is not shown and nothing runs."""
    key = new_key()
    first = target.post("/payments", key)
    others = [
        target.post("/payments", key, content=b'{"amount": 11}'),
        target.post("/payments?a=1", key),
        target.post("/declined", key),
        target.send("PUT", "/items/1", key),
        target.post("/payments", key, headers={"Content-Type": "text/plain"}),
    ]
    for other in others:
        assert is_problem(other, 422, "mismatch")
        assert first.json()["id"] not in other.text
    assert target.executions(key) == 1


def test_the_same_json_in_other_words_is_the_same_request(target: Target) -> None:
    key = new_key()
    first = target.post("/payments", key, content=b'{"a": 1, "b": "\xc3\xa9"}')
    again = target.post(
        "/payments",
        key,
        content=b'{ "b":"\\u00e9","a":1 }',
        headers={"Content-Type": "application/json; charset=utf-8"},
    )
    assert again.content == first.content
    assert target.post("/payments", key, content=b'{"a": 1.0, "b": "\xc3\xa9"}').status_code == 422


def test_while_the_first_runs_the_same_is_told_to_wait_and_another_to_go(target: Target) -> None:
    """I9: a wrong payload gets 422 and never "wait"."""
    key = new_key()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(target.post, "/slow", key)
        target.began(key)
        busy = target.post("/slow", key)
        other = target.post("/slow", key, content=b"{}")
        target.go(key)
        done = first.result()
    assert is_problem(busy, 409, "in-progress")
    assert 1 <= int(busy.headers["retry-after"]) <= 60
    assert busy.json()["retry_same_key"] is True
    assert busy.json()["safe_new_key"] is False
    assert is_problem(other, 422, "mismatch")
    assert done.status_code == 201
    assert target.post("/slow", key).content == done.content
    assert target.executions(key) == 1


def test_busy_wait_gets_the_first_answer(target: Target) -> None:
    key = new_key()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(target.post, "/slow-wait", key)
        target.began(key)
        waiting = [pool.submit(target.post, "/slow-wait", key) for _ in range(3)]
        target.go(key)
        answers = [one.result() for one in [first, *waiting]]
    assert {answer.content for answer in answers} == {answers[0].content}
    assert target.executions(key) == 1


def test_busy_accepted_gives_a_status_url(target: Target) -> None:
    key = new_key()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(target.post, "/slow-accepted", key)
        target.began(key)
        accepted = target.post("/slow-accepted", key)
        address = accepted.headers["location"]
        running = target.http.get(address, headers=target.headers(None))
        foreign = target.http.get(address, headers=target.headers(None, token="token-bob"))
        wrong = target.http.get(address[:-8] + "AAAAAAAA", headers=target.headers(None))
        target.go(key)
        done = first.result()
    shown = target.http.get(address, headers=target.headers(None))
    assert accepted.status_code == running.status_code == 202
    assert "retry-after" in accepted.headers
    assert foreign.status_code == wrong.status_code == 404
    assert foreign.content == wrong.content
    assert (shown.status_code, shown.content) == (done.status_code, done.content)
    assert shown.headers["idempotent-replayed"] == "true"


def test_a_released_key_runs_again(target: Target) -> None:
    key = new_key()
    failed, tried, again = (target.post("/flaky", key) for _ in range(3))
    assert (failed.status_code, tried.status_code, again.status_code) == (503, 201, 201)
    assert tried.content == again.content
    assert target.executions(key) == 2
    assert target.post("/flaky", key, content=b"{}").status_code == 422


def test_every_unsafe_method_is_protected(target: Target) -> None:
    for method in ("PUT", "PATCH", "DELETE"):
        key = new_key()
        first, again = (target.send(method, "/items/7", key) for _ in range(2))
        assert first.status_code == again.status_code == (200 if method == "PUT" else 204)
        assert first.content == again.content
        assert target.executions(key) == 1


def test_safe_methods_are_left_alone(target: Target) -> None:
    told = [target.http.get("/health", headers={"Idempotency-Key": bad}) for bad in ("", "a, b", "ok")]
    assert [one.status_code for one in told] == [200, 200, 200]
    assert all("idempotent-replayed" not in one.headers for one in told)
