"""Publishing: at least once with a stable id, in order on request, dead letters, and allowed addresses."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import redis

from retrysafe import RetrySafe
from retrysafe.core.jobs import Job, ListJobs, ReviveJob, Stage
from retrysafe.errors import UsageError
from retrysafe.stores.registry import open_store
from retrysafe.worker.enqueuer import Enqueuer, EnqueuerCounts
from retrysafe.worker.publishers import DeliveryFailed, HttpPublisher, RedisStreamPublisher, is_public_address
from tests.opening import patient, unique, with_option


@pytest.fixture
def safe() -> Iterator[RetrySafe]:
    with RetrySafe("memory://") as made:
        yield made


def job(number: int, topic: str = "t", order: str = "") -> Job:
    return Job(f"{number:032x}", topic, json.dumps({"n": number}).encode(), order)


def test_each_job_goes_to_its_topics_publisher(safe: RetrySafe) -> None:
    safe.execute(Stage((job(1, "a"), job(2, "b"), job(3, "c"))))
    got: list[tuple[str, str]] = []

    async def rest(given: Job) -> None:
        got.append(("rest", given.topic))

    sent = Enqueuer(safe, {"a": lambda given: got.append(("a", given.topic)), "*": rest}).run_once()
    assert sent == EnqueuerCounts(3, 0, 0)
    assert got == [("a", "a"), ("rest", "b"), ("rest", "c")]
    assert safe.execute(ListJobs()) == ()


def test_a_topic_nobody_here_knows_waits_and_never_dies_of_it(
    safe: RetrySafe, caplog: pytest.LogCaptureFixture
) -> None:
    safe.execute(Stage((job(1),)))
    for _ in range(3):
        with caplog.at_level(logging.WARNING):
            assert Enqueuer(safe, {}, max_attempts=1).run_once() == EnqueuerCounts(0, 0, 0, waiting=1)
    assert "no publisher for topic 't'" in caplog.text
    (left,) = safe.execute(ListJobs())
    assert (left.dead, left.attempts) == (False, 0), "a round without a publisher is no delivery"
    assert Enqueuer(safe, {"t": lambda given: None}).run_once() == EnqueuerCounts(1, 0, 0)


def test_poison_goes_to_the_dead_letters_and_a_person_can_revive_it(safe: RetrySafe) -> None:
    events: list[str] = []
    safe.events.subscribe(lambda event: events.append(event.name))
    safe.execute(Stage((job(1), job(2))))

    def refuses(given: Job) -> None:
        if given.id == job(1).id:
            raise ValueError("poison")

    assert Enqueuer(safe, {"t": refuses}, max_attempts=1).run_once() == EnqueuerCounts(1, 0, 1)
    (dead,) = safe.execute(ListJobs(dead=True))
    assert (dead.job.id, dead.error) == (job(1).id, "ValueError: poison")
    assert events == ["job_dead"]
    assert safe.execute(ReviveJob(job(1).id))
    assert Enqueuer(safe, {"t": lambda given: None}).run_once() == EnqueuerCounts(1, 0, 0)


def test_stopping_between_batches(safe: RetrySafe) -> None:
    safe.execute(Stage(tuple(job(number) for number in range(10))))
    sent: list[str] = []
    enqueuer = Enqueuer(safe, {"t": lambda given: sent.append(given.id)}, batch=4)
    assert enqueuer.run_once(lambda: len(sent) == 6) == EnqueuerCounts(6, 0, 0)
    assert [each.attempts for each in safe.execute(ListJobs())] == [0] * 4, "what was not tried is not counted"


@pytest.mark.store("postgres")
def test_a_lower_number_that_commits_later_is_not_lost(postgres_url: str) -> None:
    """I19: two real transactions. The one that drew the first number commits after the second was published."""
    prefix = unique()
    url = with_option(patient("postgres", postgres_url), "table", prefix)
    store = open_store(url)
    store.migrate()
    store.close()
    got: list[str] = []
    text = (
        f"INSERT INTO {prefix}_outbox (id, topic, payload, order_key, created, attempts, due, token, dead, error) "
        "VALUES (%s, 't', '', '', 0, 0, 0, '', 0, '') RETURNING sequence"
    )
    with psycopg.connect(postgres_url) as slow, psycopg.connect(postgres_url) as quick, RetrySafe(url) as safe:
        (first,) = slow.execute(text, ["a" * 32]).fetchone() or (0,)
        (second,) = quick.execute(text, ["b" * 32]).fetchone() or (0,)
        assert first < second
        quick.commit()
        enqueuer = Enqueuer(safe, {"t": lambda given: got.append(given.id)})
        assert enqueuer.run_once() == EnqueuerCounts(1, 0, 0)
        slow.commit()
        assert enqueuer.run_once() == EnqueuerCounts(1, 0, 0)
    assert got == ["b" * 32, "a" * 32]


# HTTP --------------------------------------------------------------------------------------------


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((dict(self.headers.items()), body))  # type: ignore[attr-defined]
        self.send_response(self.server.answers.pop(0))  # type: ignore[attr-defined]
        self.send_header("content-length", "0")
        self.send_header("location", "http://169.254.169.254/")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.got, server.answers = [], []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_post_carries_the_jobs_id(receiver: Any) -> None:
    receiver.answers += [204]
    HttpPublisher(f"http://localhost:{receiver.server_port}/hook?x=1", allow_private=True, resolve=loopback)(job(7))
    ((headers, body),) = receiver.got
    assert body == b'{"n": 7}'
    told = {name.lower(): value for name, value in headers.items()}
    assert (told["idempotency-key"], told["webhook-id"]) == (f'"{job(7).id}"', job(7).id)
    assert told["host"] == f"localhost:{receiver.server_port}"


def loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


@pytest.mark.parametrize("status", [301, 404, 500])
def test_anything_but_success_is_not_delivered_and_no_redirect_is_followed(receiver: Any, status: int) -> None:
    receiver.answers += [status]
    publish = HttpPublisher(f"http://127.0.0.1:{receiver.server_port}/", allow_private=True)
    with pytest.raises(DeliveryFailed, match=str(status)):
        publish(job(1))
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "localhost", "0.0.0.0"]
)
def test_private_addresses_are_refused_however_they_are_written(receiver: Any, host: str) -> None:
    """S29."""
    publish = HttpPublisher(f"http://{host}:{receiver.server_port}/")
    with pytest.raises(DeliveryFailed, match=r"not a public address|cannot be found"):
        publish(job(1))
    assert receiver.got == []


def test_a_name_that_points_at_one_public_and_one_private_address_is_refused(receiver: Any) -> None:
    publish = HttpPublisher("http://mixed.example/", resolve=lambda host, port: ["93.184.216.34", "10.0.0.1"])
    with pytest.raises(DeliveryFailed, match=r"10\.0\.0\.1"):
        publish(job(1))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::", False),
        ("2002:7f00:1::", False),
    ],
)
def test_which_addresses_are_public(address: str, expected: bool) -> None:
    assert is_public_address(address) is expected


@pytest.mark.parametrize("url", ["ftp://x/", "http://", "http://user:pass@host/", "/path"])
def test_a_url_that_cannot_be_posted_to_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="HttpPublisher"):
        HttpPublisher(url)


@pytest.mark.store("redis")
def test_a_redis_stream(redis_url: str, safe: RetrySafe) -> None:
    stream = f"events-{uuid4().hex}"
    with redis.Redis.from_url(redis_url) as client:
        safe.execute(Stage((job(1, order="o"), job(2))))
        sent = Enqueuer(safe, {"*": RedisStreamPublisher(client, stream, maxlen=100)}).run_once()
        assert sent == EnqueuerCounts(2, 0, 0)
        entries: Any = client.xrange(stream)
        client.delete(stream)
    assert [fields[b"id"].decode() for _, fields in entries] == [job(1).id, job(2).id]
    assert entries[0][1][b"payload"] == b'{"n": 1}'
