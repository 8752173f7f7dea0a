"""Verify, deduplicate, handle, 2xx: for plain and async handlers, called from threads and from event loops."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from retrysafe.core.ops import Lookup, Stats
from retrysafe.core.records import Answer
from retrysafe.core.states import State
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError, VerificationError
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.faults import Fault, FaultStore, Script
from retrysafe.web.capture import Response
from retrysafe.webhooks import Event, GitHub, Receiver, Stripe
from tests.webhooks.senders import NOW, SENDERS, Sender

STRIPE = SENDERS["stripe"]
Take = Callable[..., Response]


def receive(receiver: Receiver, headers: Any, body: bytes) -> Response:
    return receiver.receive(headers, body)


def areceive(receiver: Receiver, headers: Any, body: bytes) -> Response:
    return asyncio.run(receiver.areceive(headers, body))


@pytest.fixture(params=[receive, areceive], ids=["thread", "loop"])
def take(request: pytest.FixtureRequest) -> Take:
    taken: Take = request.param
    return taken


@pytest.fixture
def safe() -> Iterator[RetrySafe]:
    with RetrySafe("memory://") as made:
        yield made


def receiver_of(safe: RetrySafe, sender: Sender = STRIPE, **options: Any) -> Receiver:
    return Receiver(safe, sender.scheme, clock=lambda: NOW, **options)


class Recorder:
    """A plain or async handler that records its events."""

    def __init__(self, colour: str = "def") -> None:
        self.events: list[Event] = []
        self.raises: Exception | None = None
        self.returns: Any = None
        self.handler = self._async if colour == "async def" else self._plain

    def _plain(self, event: Event) -> Any:
        self.events.append(event)
        if self.raises is not None:
            raise self.raises
        return self.returns

    async def _async(self, event: Event) -> Any:
        await asyncio.sleep(0)
        return self._plain(event)


@pytest.fixture(params=["def", "async def"])
def recorder(request: pytest.FixtureRequest) -> Recorder:
    return Recorder(request.param)


# Once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SENDERS)
def test_an_event_is_handled_once_however_often_it_comes(
    safe: RetrySafe, take: Take, recorder: Recorder, name: str
) -> None:
    sender = SENDERS[name]
    receiver = receiver_of(safe, sender)
    receiver.on("order.paid")(recorder.handler)
    sent = sender.send("evt-1")
    answers = [take(receiver, *sent) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert [("idempotent-replayed", "true") in answer.headers for answer in answers] == [False, True, True]
    take(receiver, *sender.send("evt-2"))
    assert [event.id for event in recorder.events] == ["evt-1", "evt-2"]
    event = recorder.events[0]
    assert (event.provider, event.type, event.body) == (sender.scheme.name, "order.paid", sent.body)
    assert event.json() == json.loads(sent.body)


def test_a_retry_with_a_new_time_and_another_counter_in_the_body_is_the_same_event(safe: RetrySafe) -> None:
    """Stripe signs every try anew and counts `pending_webhooks` down, but the id is the same."""
    receiver, handled = receiver_of(safe), Recorder()
    receiver.on()(handled.handler)
    assert receiver.receive(*STRIPE.send("evt-1", now=NOW - 200, pending_webhooks=2)).status == 200
    assert receiver.receive(*STRIPE.send("evt-1", now=NOW, pending_webhooks=1)).status == 200
    assert len(handled.events) == 1


def test_two_accounts_of_one_sender_have_ids_of_their_own(safe: RetrySafe) -> None:
    handled = Recorder()
    for provider in ("stripe-eu", "stripe-us"):
        receiver = receiver_of(safe, provider=provider)
        receiver.on()(handled.handler)
        receiver.receive(*STRIPE.send("evt-1"))
    assert [event.provider for event in handled.events] == ["stripe-eu", "stripe-us"]


def test_a_type_nobody_handles_is_thanked_for_and_leaves_no_trace(safe: RetrySafe, take: Take) -> None:
    """S21."""
    receiver, handled = receiver_of(safe), Recorder()
    receiver.on("order.paid")(handled.handler)
    assert take(receiver, *STRIPE.send("evt-1", "order.made")).status == 200
    assert handled.events == []
    assert sum(safe.execute(Stats())[:4]) == 0


def test_the_most_exact_handler_gets_it(safe: RetrySafe) -> None:
    receiver = receiver_of(safe)
    seen: list[tuple[str, str]] = []
    for pattern in ("order.paid", "order.*", "order.paid.*", "*"):
        receiver.on(pattern)(lambda event, pattern=pattern: seen.append((event.type, pattern)))
    types = ["order.paid", "order.made", "order.paid.late", "order", ""]
    for number, type_ in enumerate(types):
        receiver.receive(*STRIPE.send(f"evt-{number}", type_))
    assert dict(seen) == {
        "order.paid": "order.paid", "order.made": "order.*", "order.paid.late": "order.paid.*", "order": "*", "": "*",
    }  # fmt: skip


# Failing ------------------------------------------------------------------------------------------


def test_a_failing_handler_answers_500_and_the_retry_runs(
    safe: RetrySafe, take: Take, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receiver_of(safe)
    receiver.on()(recorder.handler)
    recorder.raises = RuntimeError("the mail server said hunter2")
    sent = STRIPE.send()
    response = take(receiver, *sent)
    assert response.status == 500
    assert b"hunter2" not in response.body
    assert "hunter2" in caplog.text, "the operator finds it in the log"
    recorder.raises = None
    assert [take(receiver, *sent).status for _ in range(2)] == [200, 200]
    assert len(recorder.events) == 2


@pytest.mark.parametrize("status", [301, 404, 410, 422, 500, 503])
def test_what_a_handler_answers_other_than_2xx_is_told_and_not_kept(
    safe: RetrySafe, take: Take, recorder: Recorder, status: int
) -> None:
    receiver = receiver_of(safe)
    receiver.on()(recorder.handler)
    recorder.returns = Answer(status, {"later": True}, {"retry-after": "60"})
    sent = STRIPE.send()
    response = take(receiver, *sent)
    assert (response.status, response.body) == (status, b'{"later":true}')
    assert ("retry-after", "60") in response.headers
    recorder.returns = Answer(202, {"done": True})
    first, again = take(receiver, *sent), take(receiver, *sent)
    assert first.status == again.status == 202
    assert first.body == again.body == b'{"done":true}'
    assert len(recorder.events) == 2


@pytest.mark.parametrize("result", [True, {"a": 1}, object(), "text", 500])
def test_what_a_handler_returns_otherwise_is_not_the_senders_business(
    safe: RetrySafe, take: Take, recorder: Recorder, result: Any
) -> None:
    receiver = receiver_of(safe)
    receiver.on()(recorder.handler)
    recorder.returns = result
    sent = STRIPE.send()
    assert [(take(receiver, *sent)[::2]) for _ in range(2)] == [(200, b""), (200, b"")]
    assert len(recorder.events) == 1


def test_an_erased_answer_is_still_a_thank_you(safe: RetrySafe) -> None:
    """After a 410 some senders would remove the endpoint."""
    receiver, handled = receiver_of(safe), Recorder()
    handled.returns = Answer(200, b"x", gone="too_large")
    receiver.on()(handled.handler)
    sent = STRIPE.send()
    assert [receiver.receive(*sent).status for _ in range(2)] == [200, 200]
    assert len(handled.events) == 1


@pytest.mark.parametrize("point", ["before", "applied"])
def test_store_down_nothing_runs_and_the_sender_is_asked_to_come_again(
    point: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retrysafe.engine.resending.RESEND_DELAYS_SECONDS", (0.0,))
    monkeypatch.setattr("retrysafe.engine.resending.RESEND_LIMIT_SECONDS", 0.0)
    sendings = 2 if point == "applied" else 1  # an operation with an unclear outcome is sent once more
    script = Script([Fault(n, point) for n in range(1, 1 + sendings)])
    safe = RetrySafe(FaultStore(MemoryStore(), script))
    receiver, handled = receiver_of(safe, lease=0.05), Recorder()
    receiver.on()(handled.handler)
    sent = STRIPE.send()
    assert receiver.receive(*sent).status == 503
    assert handled.events == []
    while (response := receiver.receive(*sent)).status == 409:
        assert point == "applied", "a claim whose reply was lost is held until its lease lapses"
    assert response.status == 200
    assert len(handled.events) == 1
    safe.close()


# While it runs ------------------------------------------------------------------------------------


def test_while_it_is_handled_it_is_answered_409_and_does_not_run_in_threads(safe: RetrySafe) -> None:
    receiver = receiver_of(safe)
    began, go = threading.Event(), threading.Event()
    runs: list[str] = []

    @receiver.on()
    def slow(event: Event) -> None:
        runs.append(event.id)
        began.set()
        assert go.wait(30)

    sent = STRIPE.send()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(receiver.receive, *sent)
        assert began.wait(30)
        again = [receiver.receive(*sent) for _ in range(3)]
        go.set()
        assert first.result().status == 200
    assert [response.status for response in again] == [409, 409, 409]
    assert all(dict(response.headers)["retry-after"].isdigit() for response in again)
    assert receiver.receive(*sent).status == 200
    assert runs == ["evt-1"]


@pytest.mark.parametrize("colour", ["def", "async def"])
async def test_while_it_is_handled_it_is_answered_409_and_does_not_run_on_a_loop(safe: RetrySafe, colour: str) -> None:
    receiver = receiver_of(safe)
    began, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    runs: list[str] = []

    async def slow(event: Event) -> None:
        runs.append(event.id)
        began.set()
        await go.wait()

    def threaded(event: Event) -> None:
        asyncio.run_coroutine_threadsafe(slow(event), loop).result(30)

    receiver.on()(slow if colour == "async def" else threaded)
    sent = STRIPE.send()
    first = asyncio.create_task(receiver.areceive(*sent))
    await began.wait()
    assert (await receiver.areceive(*sent)).status == 409, "and the loop is free to say so"
    go.set()
    assert (await first).status == 200
    assert (await receiver.areceive(*sent)).status == 200
    assert runs == ["evt-1"]


async def test_a_sender_that_hangs_up_does_not_stop_the_handler(safe: RetrySafe) -> None:
    receiver = receiver_of(safe)
    began, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @receiver.on()
    async def slow(event: Event) -> None:
        began.set()
        await go.wait()
        done.set()

    sent = STRIPE.send()
    first = asyncio.create_task(receiver.areceive(*sent))
    await began.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await asyncio.wait_for(receiver.areceive(*sent), 30)).status == 409
    go.set()
    await asyncio.wait_for(done.wait(), 30)
    await asyncio.gather(*receiver._running)
    response = await receiver.areceive(*sent)
    assert response.status == 200
    assert ("idempotent-replayed", "true") in response.headers


def test_a_handler_knows_its_lease(safe: RetrySafe) -> None:
    from retrysafe import current_lease, derive

    receiver = receiver_of(safe)
    seen: list[str] = []

    @receiver.on()
    def handle(event: Event) -> None:
        lease = current_lease()
        assert lease is not None
        record = safe.execute(Lookup(lease.id)).record
        assert record is not None
        assert (record.kind, record.scope, record.key) == ("webhook", "stripe", event.key)
        assert (record.state, record.on_lapse) == (State.CLAIMED, "rerun")
        seen.append(derive(event.key, "crm", "contact"))

    receiver.receive(*STRIPE.send())
    assert len(seen) == 1


# Edges --------------------------------------------------------------------------------------------


def test_slacks_question_is_answered_and_leaves_no_trace(safe: RetrySafe, take: Take) -> None:
    scheme = SENDERS["slack"].scheme
    receiver = receiver_of(safe, SENDERS["slack"])
    body = b'{"type": "url_verification", "challenge": "abc"}'
    response = take(receiver, scheme.sign(body, id="", now=NOW), body)
    assert (response.status, response.body) == (200, b"abc")
    assert sum(safe.execute(Stats())[:4]) == 0


def test_verify_alone_gives_the_event_or_says_why_not(safe: RetrySafe) -> None:
    receiver = receiver_of(safe)
    headers, body = STRIPE.send("evt-1")
    secret = {"Authorization": "Bearer hunter2", "Cookie": "hunter2", "User-Agent": "Stripe/1.0"}
    event = receiver.verify({**headers, **secret}, body)
    assert event.id == "evt-1"
    assert event.headers == (("user-agent", "Stripe/1.0"),), "neither signatures nor credentials are passed on"
    assert event.header("User-Agent") == "Stripe/1.0"
    assert event.header("X-None") == ""
    with pytest.raises(VerificationError):
        receiver.verify(headers, body + b" ")


def test_refusals_say_nothing_to_the_sender_and_the_reason_to_the_log(
    safe: RetrySafe, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = receiver_of(safe)
    receiver.on()(Recorder().handler)
    headers, body = STRIPE.send()
    with caplog.at_level(logging.WARNING, "retrysafe.webhooks"):
        answers = {receiver.receive(headers, body + b" ").body, receiver.receive({}, body).body}
        answers.add(receiver.receive(*STRIPE.send(now=NOW - 301)).body)
    assert len(answers) == 1, "one answer for all: nobody learns which part was wrong"
    assert "no Stripe-Signature" in caplog.text
    assert "whsec_" not in caplog.text


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda safe: Receiver(safe, "whsec_x"), "give a scheme"),
        (lambda safe: Receiver(safe, Stripe("s"), provider="a@b"), "provider='a@b'"),
        (lambda safe: Receiver(safe, Stripe("s"), provider="naïve"), "printable ASCII"),
        (lambda safe: Receiver(safe, Stripe("s"), inbox=True, tx="other.db"), "give tx= to RetrySafe"),
        (lambda safe: Receiver(safe, Stripe("s")).on("a*b")(print), "'a*b'"),
        (lambda safe: Receiver(safe, Stripe("s")).on("a", "a")(lambda event: None), "one handler per pattern"),
        (lambda safe: Receiver(safe, Stripe("s")).on()(lambda: None), "a handler takes the event"),
        (lambda safe: Receiver(safe, Stripe("s")).on()(lambda a, b: None), "a handler takes the event"),
        (lambda safe: Receiver(safe, Stripe("s")).on()(lambda event: (yield)), "is a generator"),
        (lambda safe: Receiver(safe, Stripe("s")).on()(lambda event, tx: None), "asks for `tx`"),
    ],
)
def test_what_cannot_work_says_so_at_once(safe: RetrySafe, wrong: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        wrong(safe)
    assert says in str(caught.value)


def test_retention_outlives_every_schedule(safe: RetrySafe) -> None:
    for name, sender in SENDERS.items():
        schedule = sender.scheme.schedule
        assert schedule.source, "each figure has a document"
        assert schedule.horizon >= sum(schedule.delays), name
        receiver = receiver_of(safe, sender, provider=name)
        assert receiver.policy.retention > max(schedule.horizon, schedule.by_hand, 86_400 * 6.9), name
    assert Receiver(safe, GitHub("s"), provider="briefly", retention=60).policy.retention == 60
