"""`submit` against `execute`: the same traffic, faults and cancellations, sent both ways, ends the same.

A store that can send without a coroutine (stores/base.py, `Submitting`) must be indistinguishable from one that cannot.
Random exchanges run twice, once each way; answers, records and events must be equal. RETRYSAFE_EXCHANGES sets how many
there are (a campaign: 100,000 per store).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Policy, RetrySafe
from retrysafe.core.keys import Key
from retrysafe.core.ops import Lookup, Op
from retrysafe.engine import resending
from retrysafe.stores.base import EXECUTE_INSTEAD, AsyncStore, find_submit
from retrysafe.stores.memory import AsyncMemoryStore
from retrysafe.stores.wrappers import AsyncStoreWrapper
from retrysafe.testing.asgi_client import AsgiCall, build_scope
from retrysafe.testing.faults import AsyncFaultStore, Fault
from retrysafe.web.asgi import IdempotencyMiddleware
from tests.opening import store_url

EXCHANGES = int(os.environ.get("RETRYSAFE_EXCHANGES", "150"))
GROUP = 12
SCOPE = "account"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resending, "RESEND_DELAYS_SECONDS", (0.0,) * 4)


class Submitted(AsyncStoreWrapper):
    """Sends every operation by `submit`; some of them have to be executed instead, as after SCRIPT FLUSH."""

    def __init__(self, store: AsyncStore, odd: Callable[[], bool] = lambda: False) -> None:
        super().__init__(store)
        self._odd = odd
        self.submitted = 0

    def submit(self, op: Op[Any]) -> asyncio.Future[Any] | None:
        self.submitted += 1
        if self._odd():
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            done.set_result(EXECUTE_INSTEAD)
            return done
        return asyncio.ensure_future(self._store.execute(op))


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Does what the path says."""
    await receive()
    kind = scope["path"].rpartition("/")[2]
    if kind == "raises":
        raise RuntimeError("the handler failed")
    if kind == "waits":
        await asyncio.sleep(0)
    status = {"refuses": 422, "fails": 503, "stranger": 401}.get(kind, 201)
    headers = [(b"content-type", b"application/json"), (b"x-kind", kind.encode()), (b"set-cookie", b"a=b")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    body = f'{{"kind": "{kind}"}}'.encode()
    if kind == "pieces":
        await send({"type": "http.response.body", "body": body[:3], "more_body": True})
        body = body[3:]
    await send({"type": "http.response.body", "body": body})


KINDS = ("works", "waits", "refuses", "fails", "stranger", "raises", "pieces")


class World:
    """One store and its middleware, and all that can be seen of them."""

    def __init__(self, store: AsyncStore | str, failures: str) -> None:
        self.events: Counter[tuple[str, str]] = Counter()
        note = lambda event: self.events.update([(event.name, event.id)])  # noqa: E731
        self.safe = RetrySafe(store, on_event=note) if isinstance(store, str) else RetrySafe(
            async_store=store, on_event=note
        )  # fmt: skip
        policy = Policy(failures=failures)  # type: ignore[arg-type]  # one of the names
        self.app = IdempotencyMiddleware(application, safe=self.safe, scope=lambda request: SCOPE, policy=policy)
        self.answers: list[Any] = []

    async def ask(self, kind: str, key: str, body: bytes, cancel_after: int | None) -> Any:
        call = AsgiCall(body)
        task = asyncio.ensure_future(self.app(build_scope(f"/{kind}", key), call.receive, call.send))
        if cancel_after is not None:
            for _ in range(cancel_after):
                await asyncio.sleep(0)
            task.cancel()
        with suppress(asyncio.CancelledError, RuntimeError):
            await task
        return [(m.get("status"), sorted(m.get("headers", ())), m.get("body")) for m in call.sent]

    async def records(self, keys: set[str]) -> list[Any]:
        """What is stored, without what is drawn or a moment."""
        found = []
        for key in sorted(keys):
            record = (await self.safe.async_store.execute(Lookup(Key(key, SCOPE).id("default")))).record
            found.append(
                None if record is None else
                (key, record.state, record.attempt, record.fingerprint, record.answer, record.note, record.target)
            )  # fmt: skip
        return found


async def play(world: World, seed: int, exchanges: int, *, cancels: bool) -> tuple[Any, ...]:
    """Random exchanges in groups. The keys of a group differ, so that who is first does not matter; groups repeat the
    keys of earlier ones, with the same body or another."""
    rng, keys = random.Random(seed), set[str]()
    for _ in range(exchanges // GROUP):
        chosen = rng.sample(range(4 * GROUP), rng.choice((1, GROUP)))
        asked: list[Awaitable[Any]] = []
        for number in chosen:
            key, kind = f"key-{number}", KINDS[number % len(KINDS)]
            keys.add(key)
            cancel = rng.choice((None, None, rng.randrange(8))) if cancels else None
            asked.append(world.ask(kind, key, rng.choice((b'{"a": 1}', b'{"a":1}', b'{"a": 2}')), cancel))
        world.answers.append(await asyncio.gather(*asked))
        if cancels:
            await world.safe.async_performer().aclose()
    return world.answers, await world.records(keys), world.events


def assert_same(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    for mine, others in zip(one, other, strict=True):
        assert mine == others


@pytest.mark.store("memory")
@pytest.mark.parametrize("failures", ["store", "release"])
@pytest.mark.parametrize("seed", range(4))
async def test_faults_end_the_same_both_ways(seed: int, failures: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A claim that was given up is followed up after a while, in the background. On a slow machine that would be in the
    # middle of the others, and each of their calls would meet another fault.
    monkeypatch.setattr("retrysafe.engine.aperform.MAX_ORPHANED_CLAIMS", 0)
    rng = random.Random(seed)
    faults = [
        Fault(call, rng.choice(("before", "applied", "delayed")))
        for call in rng.sample(range(1, EXCHANGES), EXCHANGES // 8)
    ]
    found = []
    for wrap in (lambda store: store, Submitted):
        world = World(wrap(AsyncFaultStore(AsyncMemoryStore(), faults)), failures)
        found.append(await play_one_by_one(world, seed, EXCHANGES))
    assert_same(*found)


async def play_one_by_one(world: World, seed: int, exchanges: int) -> tuple[Any, ...]:
    """One after the other, so that the same call meets the same fault both ways."""
    rng, keys = random.Random(seed), set[str]()
    for _ in range(exchanges):
        number = rng.randrange(40)
        keys.add(f"key-{number}")
        body = rng.choice((b'{"a": 1}', b'{"a": 2}'))
        world.answers.append(await world.ask(KINDS[number % len(KINDS)], f"key-{number}", body, None))
    store: Any = world.safe.async_store
    faulty: Any = store._store if isinstance(store, Submitted) else store
    faulty.script.repair()
    return world.answers, await world.records(keys), world.events


@pytest.mark.store("memory")
@pytest.mark.parametrize("seed", range(4))
async def test_some_have_to_be_executed_instead(seed: int) -> None:
    rng = random.Random(seed)
    plain = World(AsyncMemoryStore(), "store")
    odd = Submitted(AsyncMemoryStore(), lambda: rng.random() < 0.3)
    other = World(odd, "store")
    assert_same(await play(plain, seed, EXCHANGES, cancels=False), await play(other, seed, EXCHANGES, cancels=False))
    assert odd.submitted > EXCHANGES // 4


@pytest.mark.parametrize("name", ["redis", "postgres", "sqlite"])
async def test_a_store_answers_the_same_both_ways(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    found = []
    for submits in (True, False):
        world = World(store_url(request, tmp_path, name), "store")
        await world.safe.async_store.migrate()
        performer = world.safe.async_performer()
        assert performer._submit is not None
        if not submits:
            performer._submit = None
        found.append(await play(world, 7, EXCHANGES, cancels=False))
        await world.safe.aclose()
    assert_same(*found)


@pytest.mark.parametrize("submits", [True, False], ids=["submit", "execute"])
@pytest.mark.parametrize("name", ["redis", "postgres", "sqlite"])
async def test_cancelled_requests_leave_nothing_claimed(
    name: str, submits: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """I32: whatever a cancellation meets, no record stays claimed without an owner."""
    world = World(store_url(request, tmp_path, name), "store")
    await world.safe.async_store.migrate()
    performer = world.safe.async_performer()
    if not submits:
        performer._submit = None
    _, records, events = await play(world, 11, EXCHANGES, cancels=True)
    await world.safe.aclose()
    assert {record[1].value for record in records if record} <= {"completed", "released", "uncertain"}
    assert sum(events.values()) > 0


def test_a_subclass_that_overrides_execute_sees_every_operation() -> None:
    class Watching(Submitted):
        async def execute(self, op: Op[Any]) -> Any:
            return await super().execute(op)

    assert find_submit(Submitted(AsyncMemoryStore())) is not None
    assert find_submit(Watching(AsyncMemoryStore())) is None
    assert find_submit(AsyncMemoryStore()) is None
