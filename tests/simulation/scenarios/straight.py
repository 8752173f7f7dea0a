"""The two ways of a web request: the claim and the completion that are sent without a flow, and the flows
(web/sync_async.py, decision 69). Requests are cancelled on their way, as a server does when its client has gone.

One store has `submit` (stores/base.py), the other has not; one application lets requests wait. Without an ablation all
kinds take the straight way, and hand over to the flow whatever is not plain. `by_flows_only` takes it out.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar
from unittest import mock

from retrysafe import RetrySafe
from retrysafe.core.ops import Op
from retrysafe.policy import Policy
from retrysafe.testing.simulation import AppHost, ClientReply, Handler, Purchase, Scenario
from retrysafe.testing.simulation.requests import REQUEST
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.sync_async import AsyncExchange
from tests.simulation.scenarios.base import Response, answer, report, send_request, start_actor, to_reply

R = TypeVar("R")

KINDS = ("executed", "submitted", "large", "waiting", "tenant", "again")
"""`executed` on a store without `submit`, `submitted` on one with it; `large` has an answer that is too large to keep;
`waiting` lets a second request wait for the first; `tenant`: all purchases have one key, each under an account of its
own; `again` may run again when its lease is over, charges with a key of its own, and says who has answered."""
WOKEN_WITHIN_SECONDS = 1.0
"""A waiter is woken when the answer is stored. It looks by itself only every two seconds or more seldom."""
WOKEN = "waiters are woken"
GOES_HOME_SECONDS = 600.0
WORK_SECONDS = 4.0
"""How long the work takes that others wait for, or that is begun again."""


WORK = ("receives", "sends", "answers", "served", "broken", "resolved", "clock set")
"""What happens on a host without a disturbance. Waiting goes by a clock that nobody sets."""


class SubmittingStore:
    """The store of one process, with the verb `submit` and with notifications within the process."""

    def __init__(self, store: Any, true_time: Callable[[], float], on_unheard: Callable[[float], None]) -> None:
        self.capabilities = replace(store.capabilities, wakes=True)
        self._store, self._true_time, self._on_unheard = store, true_time, on_unheard
        self._waiting: dict[bytes, asyncio.Event] = {}

    def submit(self, op: Op[Any]) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._store.execute(op))

    async def execute(self, op: Op[R]) -> R:
        reply: R = await self._store.execute(op)
        return reply

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        replies: list[Any] = await self._store.execute_many(ops)
        return replies

    async def announce(self, record_id: bytes) -> None:
        event = self._waiting.pop(record_id, None)
        if event is not None:
            event.set()

    async def wait(self, record_id: bytes, seconds: float) -> None:
        event, began = self._waiting.setdefault(record_id, asyncio.Event()), self._true_time()
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            if not event.is_set():
                self._on_unheard(began)

    async def migrate(self) -> list[str]:
        return []

    async def aclose(self) -> None:
        """Nothing is open."""


def deploy(node: AppHost) -> Handler:
    provider, store = node.provider, node.safe.async_store

    def judge_listener(began: float) -> None:
        """Nobody woke this waiter. Had the answer been given meanwhile?"""
        request = REQUEST.get()
        if request is not None and any(at > began for at in list_times(node, "served", request.purchase)):
            report(node, WOKEN, f"{request.purchase} listened since {began:.3f} s, and nobody told it of its answer")

    waking = SubmittingStore(store, lambda: provider.now, judge_listener)
    submitting = RetrySafe(async_store=waking, namespace=node.safe.namespace)

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        kind, _, name = scope["path"].strip("/").partition("/")
        await receive()
        account = dict(scope["headers"])[b"account"].decode()
        number = await provider.charge(account if kind == "tenant" else name, f"own-{name}" if kind == "again" else "")
        if kind in ("waiting", "again"):
            await asyncio.sleep(WORK_SECONDS)
        more = {"large": "x" * 400, "again": f"{node.host.name} at {provider.now:.3f}"}.get(kind, "")
        body = json.dumps({"charge": number, "more": more}).encode()
        await answer(send, 201, body)

    def protect(safe: RetrySafe, **more: Any) -> Any:
        policy = Policy(retention=200_000, max_answer=200, **more)
        return IdempotencyMiddleware(endpoint, safe=safe, scope=lambda view: view.headers["account"], policy=policy)

    executed, submitted = protect(node.safe), protect(submitting)
    waiting = protect(submitting, busy="wait", wait=20.0)
    again = protect(submitting, abandoned="rerun", lease=10.0)
    apps = {kind: {"executed": executed, "waiting": waiting, "again": again}.get(kind, submitted) for kind in KINDS}
    if node.host.name.startswith("app"):
        start_actor(intrude(node, apps))

    async def handle(purchase: Purchase) -> ClientReply:
        asked = provider.now
        provider.history.note(asked, node.host.name, "receives", purchase.name, kind=purchase.kind)
        hurried = (0.0005, 0.001, 0.002, 0.003, 0.004, 0.006, 0.1, 3.0, 60.0)
        patience = asyncio.timeout(random.choice(hurried) if provider.now < GOES_HOME_SECONDS else 60.0)
        try:
            async with patience:
                response = await send_purchase(apps[purchase.kind], purchase)
        except TimeoutError:
            return ClientReply(503, b"cancelled")
        if patience.expired():
            report(node, "I29 cancellations arrive", f"a cancelled request of {purchase.name} was told {response}")
        return judge_answer(node, purchase, response, asked)

    return handle


async def send_purchase(app: Any, purchase: Purchase) -> Response:
    if purchase.kind == "tenant":
        return await send_request(app, "/tenant", "one-key-for-all", account=purchase.name)
    return await send_request(app, f"/{purchase.kind}/{purchase.name}", purchase.key)


def judge_answer(node: AppHost, purchase: Purchase, response: Response, asked: float) -> ClientReply:
    history, now = node.provider.history, node.provider.now
    if purchase.kind == "large" and response.status < 300 and b"charge" not in response.body:
        report(node, "S8 no empty replay", f"{purchase.name} was told {response.status} without its answer")
    if purchase.kind == "large" and response.status in (201, 410):  # replayed or not: it was done
        return ClientReply(410, b"done")
    if purchase.kind == "waiting" and response.status == 201:
        replayed = "idempotent-replayed" in response.headers
        told = list_times(node, "served", purchase.name)
        late = replayed and told and asked < told[0] and now - told[0] > WOKEN_WITHIN_SECONDS
        if late and not is_disturbed(node, asked):
            report(node, WOKEN, f"{purchase.name} was told {now - told[0]:.1f} s after its answer")
        if not replayed:
            history.note(now, node.host.name, "served", purchase.name)
    return to_reply(response)


def list_times(node: AppHost, what: str, about: str) -> list[float]:
    """When something happened to a purchase on this host."""
    return [event.at for event in node.provider.history.find(what, about) if event.where == node.host.name]


def is_disturbed(node: AppHost, since: float) -> bool:
    """Whether something disturbed this host, its messages or the store at a moment or after it. A waiter that was woken
    asks the store, which takes as long as its messages need; and who waits for a reply does not listen."""
    events = [event for event in node.provider.history.events if event.where in (node.host.name, "store")]
    return any(event.at + event.data.get("seconds", 0.0) >= since for event in events if event.what not in WORK)


async def intrude(node: AppHost, apps: dict[str, Any]) -> None:
    """Somebody sends the keys of others with another body."""
    while node.provider.now < 120.0:
        await asyncio.sleep(random.uniform(0.5, 3.0))
        name = f"p{random.randrange(1, 4)}"
        events = [event for event in node.provider.history.events if event.about == name]
        kinds = [event.data["kind"] for event in events if event.what == "receives"]
        if not kinds or kinds[0] == "tenant" or not any(event.what == "sends" for event in events):
            continue
        path = f"/{kinds[0]}/{name}"
        try:
            response = await send_request(apps[kinds[0]], path, f"key-{name}", body=b'{"intruder": 1}')
        except (ConnectionError, TimeoutError) as error:  # of the endpoint: it was run for the intruder
            report(node, "I8 mismatch", f"another body with the key of {name} was run, and met {error!r}")
            continue
        if response.status < 300 or b'"charge"' in response.body:
            report(node, "I8 mismatch", f"another body with the key of {name} was answered {response.status}")


# The general way alone ----------------------------------------------------------------------------


async def send_by_flow(self: Any, task: Any) -> Any:
    return await self.settings.safe.arun(self.claim_flow(task, task.build_claim()))


async def settle_by_flow(self: Any, code: int, headers: Any, body: bytes) -> Any:
    return await self.settle(self.settle_answered(code, headers, body))


@contextmanager
def by_flows_only() -> Iterator[None]:
    """Claims and completions go by flows, as all did before decision 69."""
    with ExitStack() as stack:
        for name, instead in (("_send_claim", send_by_flow), ("settle_answer", settle_by_flow)):
            patch: AbstractContextManager[Any] = mock.patch.object(AsyncExchange, name, instead)
            stack.enter_context(patch)
        yield


STRAIGHT = Scenario(deploy, KINDS)
