"""The transaction strength on DynamoDB: the user's writes and the receipt in one request, sync and async."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.core.ops import Lookup
from retrysafe.core.states import State
from retrysafe.engine.guard import Ended
from retrysafe.engine.sealing import KeyRing
from retrysafe.errors import FingerprintMismatch, InProgress, OutcomeUnknown, StoreError, UsageError
from retrysafe.stores.dynamodb.transact import TransactOp, request_token
from retrysafe.testing import LoopThread
from retrysafe.testing.builders import advance, claim, complete, record_of, release
from retrysafe.transactions.on_dynamodb import Writes, WritesRefused, atransact, transact
from tests.faults.dynamodb_proxy import DynamoProxy
from tests.opening import unique, with_option
from tests.servers.dynamodb import client_of

pytestmark = pytest.mark.store("dynamodb")


class Shop:
    """A table of orders and a store. `do` carries out writes, sync or async."""

    def __init__(self, url: str, colour: str, **more: Any) -> None:
        self.url, self.colour = url, colour
        self.orders = unique("orders_")
        self.client = client_of(url)
        self.client.create_table(
            TableName=self.orders,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        )
        self.safe = RetrySafe(url, **more)
        self.safe.migrate()
        self.loop = LoopThread()

    def put(self, order: str, **more: Any) -> dict[str, Any]:
        return {"Put": {"TableName": self.orders, "Item": {"id": {"S": order}}, **more}}

    def new(self, order: str) -> dict[str, Any]:
        return self.put(order, ConditionExpression="attribute_not_exists(id)")

    def do(self, work: Any, key: str = "k", request: Any = None, safe: RetrySafe | None = None, **more: Any) -> Ended:
        told = {"key": key, "scope": "acct-1", "request": request, **more}
        if self.colour == "sync":
            return transact(safe or self.safe, work, **told)
        return self.loop.run(atransact(safe or self.safe, work, **told))

    def there(self) -> set[str]:
        return {item["id"]["S"] for item in self.client.scan(TableName=self.orders)["Items"]}

    def close(self) -> None:
        self.loop.run(self.safe.aclose())
        self.loop.close()
        self.client.close()


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest, dynamodb_url: str) -> Iterator[Callable[..., Shop]]:
    opened: list[Shop] = []

    def made(url: str = "", **more: Any) -> Shop:
        shop = Shop(url or with_option(dynamodb_url, "table", unique("keys_")), request.param, **more)
        opened.append(shop)
        return shop

    yield made
    for shop in opened:
        shop.close()


@pytest.fixture
def shop(make: Callable[..., Shop]) -> Shop:
    return make()


def test_once_and_the_same_answer_again(shop: Shop) -> None:
    calls = []

    def order() -> Writes:
        calls.append(1)
        return Writes([shop.new("o1")], Answer(201, {"order": "o1"}))

    first, again = shop.do(order), shop.do(order)
    assert (first.answer, first.replayed, again.answer, again.replayed) == (again.answer, False, first.answer, True)
    assert (len(calls), shop.there()) == (1, {"o1"})
    record = shop.safe.store.execute(Lookup(first.record.id)).record
    assert record is not None
    assert (record.state, record.attempt, record.answer) == (State.COMPLETED, 1, first.answer)
    assert shop.safe.counters["completed"] == 1


def test_writes_may_be_given_as_they_are(shop: Shop) -> None:
    for _ in range(2):
        assert shop.do(Writes([shop.new("o1"), shop.new("o2")], Answer(204))).answer == Answer(204)
    assert shop.there() == {"o1", "o2"}


def test_work_may_be_async(dynamodb_url: str) -> None:
    shop = Shop(with_option(dynamodb_url, "table", unique("keys_")), "async")

    async def order() -> Writes:
        await asyncio.sleep(0)
        return Writes([shop.new("o1")], Answer(201))

    assert shop.do(order).answer == Answer(201)
    assert shop.there() == {"o1"}
    shop.close()


def test_another_request_under_the_same_key_is_refused(shop: Shop) -> None:
    shop.do(Writes([shop.new("o1")], Answer(201)), request={"cents": 1})
    with pytest.raises(FingerprintMismatch):
        shop.do(Writes([shop.new("o2")], Answer(201)), request={"cents": 2})
    assert shop.there() == {"o1"}


def test_a_condition_of_the_users_own_leaves_nothing_behind(shop: Shop) -> None:
    """All writes are carried out or none, the receipt included. The key is still free for the corrected writes."""
    shop.do(Writes([shop.new("o1")], Answer(201)), key="first")
    old = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    taken = shop.put("o1", ConditionExpression="attribute_not_exists(id)", **old)
    with pytest.raises(WritesRefused, match="write 1: ConditionalCheckFailed") as told:
        shop.do(Writes([shop.new("o2"), taken], Answer(201)))
    assert [(reason.place, reason.item) for reason in told.value.reasons] == [(1, {"id": {"S": "o1"}})]
    assert shop.there() == {"o1"}
    assert not shop.do(Writes([shop.new("o2")], Answer(201))).replayed


def test_a_body_that_raises_writes_nothing(shop: Shop) -> None:
    def broken() -> Writes:
        raise LookupError("no such item")

    with pytest.raises(LookupError):
        shop.do(broken)
    assert shop.there() == set()
    assert not shop.do(Writes([shop.new("o1")], Answer(201))).replayed


def test_twins_at_the_same_moment(shop: Shop) -> None:
    """Both callers ran their body and sent it. One receipt was stored, and the other caller gets its answer."""
    gate = threading.Barrier(2)
    met = threading.Event()
    ended: list[Ended] = []

    def order(name: str) -> Writes:
        if not met.is_set():
            gate.wait(60)
            met.set()
        return Writes([shop.put(name)], Answer(201, {"order": name}))

    def twin(name: str) -> None:
        ended.append(transact(shop.safe, lambda: order(name), key="k", scope="acct-1"))

    threads = [threading.Thread(target=twin, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [one.answer for one in ended] == [ended[0].answer] * 2
    assert sorted(one.replayed for one in ended) == [False, True]
    assert shop.there() == {ended[0].answer.json()["order"]}


def test_a_guard_that_holds_the_key_is_waited_for_or_told(shop: Shop) -> None:
    ended = shop.do(Writes([shop.new("o1")], Answer(201)), key="other")
    record = ended.record
    held = claim("mine", scope="acct-1", kind=record.kind, namespace=record.namespace, now=None)  # type: ignore[arg-type]
    held = type(held)(**{name: getattr(held, name) for name in held.__slots__} | {"fingerprint": record.fingerprint})
    reply = shop.safe.store.execute(held)
    with pytest.raises(InProgress):
        shop.do(Writes([shop.new("o2")], Answer(201)), key="mine", policy=Policy(busy="conflict"))
    assert shop.safe.store.execute(release(reply, now=None)) is True
    ended = shop.do(Writes([shop.new("o2")], Answer(201)), key="mine")
    assert (ended.record.attempt, ended.replayed, shop.there()) == (2, False, {"o1", "o2"})
    assert shop.safe.store.execute(complete(reply, b"zombie", now=None)) is False


def test_an_operation_that_stopped_half_way_is_not_overwritten(shop: Shop) -> None:
    record = shop.do(Writes([shop.new("o1")], Answer(201)), key="other").record
    held = claim("mine", scope="acct-1", kind=record.kind, fingerprint=record.fingerprint, now=None)  # type: ignore[arg-type]
    reply = shop.safe.store.execute(held)
    assert shop.safe.store.execute(advance(reply, "charged", now=None)) is True
    assert shop.safe.store.execute(release(record_of(reply), now=None)) is True
    with pytest.raises(OutcomeUnknown, match="charged"):
        shop.do(Writes([shop.new("o2")], Answer(201)), key="mine")
    assert shop.there() == {"o1"}


@pytest.mark.parametrize("how", ["swallow", "fail"])
def test_a_lost_answer_is_found_again(make: Callable[..., Shop], dynamodb_url: str, how: Any) -> None:
    """The transaction was carried out. The SDK or the engine sends the same request again and learns that."""
    proxy = DynamoProxy(with_option(dynamodb_url, "table", unique("keys_")))
    shop = make(proxy.url)
    proxy.lose(how)
    ended = shop.do(Writes([shop.new("o1")], Answer(201, {"order": "o1"})))
    assert (proxy.lost, ended.replayed, shop.there()) == (1, False, {"o1"})
    again = shop.do(Writes([shop.new("o9")], Answer(500)))
    assert (again.replayed, again.answer, shop.there()) == (True, ended.answer, {"o1"})
    proxy.close()


def test_a_lost_request_is_sent_again(make: Callable[..., Shop], dynamodb_url: str) -> None:
    proxy = DynamoProxy(with_option(dynamodb_url, "table", unique("keys_")))
    shop = make(proxy.url)
    proxy.lose("before")
    assert not shop.do(Writes([shop.new("o1")], Answer(201))).replayed
    assert (proxy.lost, shop.there()) == (1, {"o1"})
    proxy.close()


def test_the_receipt_is_recognised_when_dynamodb_has_forgotten_the_request(shop: Shop) -> None:
    """After ten minutes DynamoDB forgets the ClientRequestToken. Then the token in the receipt decides."""
    op = TransactOp(claim("k", now=None), Answer(201), (shop.put("o1"),), at=1_700_000_000_000_000)
    assert shop.safe.store.execute(op).claim.granted
    later = TransactOp(op.claim, op.answer, (shop.put("o2"),), at=op.at)
    with pytest.raises(StoreError, match="IdempotentParameterMismatch"):
        shop.safe.store.execute(later)  # within ten minutes: the same token, other writes
    forgotten = TransactOp(op.claim, op.answer, op.writes, at=op.at)
    sent: list[str] = []
    store = shop.safe.store._current().store  # type: ignore[attr-defined]  # what ForkSafe opened

    def other_token(params: dict[str, Any], **_: Any) -> None:
        params["ClientRequestToken"] = unique("another-")
        sent.append(params["ClientRequestToken"])

    inner = getattr(store, "_store", store)  # it may be wrapped for batching
    inner._client.meta.events.register("provide-client-params.dynamodb.TransactWriteItems", other_token)
    reply = shop.safe.store.execute(forgotten)
    assert sent
    assert reply.claim.granted
    assert record_of(reply.claim).token == op.claim.token
    assert shop.there() == {"o1"}


def test_the_request_token_is_the_requests(shop: Shop) -> None:
    op = claim("k")
    assert request_token(op, None) == request_token(op, None)
    assert len({request_token(op, None), request_token(claim("k"), None)}) == 2
    assert len(request_token(op, None)) == 36


def test_the_answer_is_sealed_with_the_others(make: Callable[..., Shop]) -> None:
    shop = make(keyring=KeyRing({"a": bytes(32)}))
    ended = shop.do(Writes([shop.new("o1")], Answer(201, b"secret")))
    record = shop.safe.store.execute(Lookup(ended.record.id)).record
    assert record is not None
    assert record.answer is not None
    assert b"secret" not in record.answer.body
    assert shop.do(Writes([], Answer(500))).answer == Answer(201, b"secret")


def test_what_cannot_be_a_transaction_is_told(shop: Shop) -> None:
    with pytest.raises(UsageError, match="room for 99"):
        shop.do(Writes([shop.put(f"o{number}") for number in range(100)], Answer(201)))
    with pytest.raises(UsageError, match="give Writes"):
        shop.do(lambda: [shop.put("o1")])
    memory = RetrySafe("memory://")
    with pytest.raises(UsageError, match="memory"):
        shop.do(Writes([], Answer(201)), safe=memory)
    memory.close()
    assert shop.there() == set()
