"""`once`: the effect happens once per key, and the result comes back each time, exactly."""

from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pydantic
import pytest

from retrysafe import Policy, RetrySafe
from retrysafe.core import fingerprint, values
from retrysafe.core.keys import Key
from retrysafe.core.ops import Complete, List
from retrysafe.core.states import State
from retrysafe.engine import codecs
from retrysafe.engine.guard import Task
from retrysafe.engine.sealing import KeyRing
from retrysafe.errors import (
    AnswerGone,
    ArgumentError,
    CorruptRecord,
    FingerprintMismatch,
    InProgress,
    MalformedKey,
    OutcomeUnknown,
    ResultNotStorable,
    StoredFailure,
    TemplateError,
    UsageError,
)
from tests.unit.engine.gates import PATIENCE


@pytest.fixture
def safe() -> Any:
    made = RetrySafe("memory://")
    yield made
    made.close()


def states(safe: RetrySafe) -> list[State]:
    return [record.state for record in safe.execute(List()).records]


# Once --------------------------------------------------------------------------------------------


def test_the_effect_happens_once_per_key(safe: RetrySafe) -> None:
    sent: list[int] = []

    @safe.once("receipt:{order}")
    def receipt(order: int) -> str:
        """Send it."""
        sent.append(order)
        return f"receipt {order}"

    assert [receipt(1), receipt(1), receipt(2), receipt(order=1)] == [
        "receipt 1",
        "receipt 1",
        "receipt 2",
        "receipt 1",
    ]
    assert sent == [1, 2]
    assert (receipt.__name__, receipt.__doc__) == ("receipt", "Send it.")
    assert safe.counters == {"new": 2, "completed": 2, "replayed": 2}


async def test_the_effect_of_a_coroutine_happens_once(safe: RetrySafe) -> None:
    sent: list[int] = []

    @safe.once("receipt:{order}")
    async def receipt(order: int) -> str:
        await asyncio.sleep(0)
        sent.append(order)
        return f"receipt {order}"

    assert [await receipt(1), await receipt(order=1), await receipt(2)] == ["receipt 1", "receipt 1", "receipt 2"]
    assert sent == [1, 2]


RESULTS = [
    None, False, 0, 0.0, "", b"", [], {}, (), set(), True, 1, [None], {"a": (1, b"x")}, {1: 2}, {"$tuple": [1]},
    datetime(2026, 11, 15, tzinfo=UTC), Decimal("1.10"), UUID(int=5), float("inf"),
]  # fmt: skip


@pytest.mark.parametrize("value", RESULTS, ids=repr)
async def test_results_come_back_as_they_were(safe: RetrySafe, value: Any) -> None:
    """PT replays `{}`, `0`, `False` as None; nodii and pyid choke on a datetime."""
    runs: list[int] = []

    @safe.once("sync:{n}")
    def sync(n: int) -> Any:
        runs.append(n)
        return value

    @safe.once("async:{n}")
    async def asynchronous(n: int) -> Any:
        runs.append(n)
        return value

    for _ in range(2):
        for result in (sync(1), await asynchronous(1)):
            assert (result, type(result)) == (value, type(value))
    assert len(runs) == 2


def test_methods(safe: RetrySafe) -> None:
    class Mailer:
        def __init__(self) -> None:
            self.sent: list[int] = []

        @safe.once("receipt:{order}", ignore=("self",))
        def send(self, order: int) -> int:
            self.sent.append(order)
            return len(self.sent)

        @staticmethod
        @safe.once("static:{n}")
        def double(n: int) -> int:
            return 2 * n

        @classmethod
        @safe.once("class:{n}", ignore="cls")
        def triple(cls, n: int) -> int:
            return 3 * n

    mailer = Mailer()
    assert (mailer.send(7), mailer.send(7), Mailer().send(7)) == (1, 1, 1)
    assert mailer.sent == [7]
    assert (Mailer.double(2), Mailer.double(2), Mailer.triple(2), mailer.triple(2)) == (4, 4, 6, 6)


def test_the_key_is_the_function_s_own(safe: RetrySafe) -> None:
    """Two functions with the same template are two functions."""

    @safe.once("x:{n}")
    def one(n: int) -> str:
        return "one"

    @safe.once("x:{n}")
    def two(n: int) -> str:
        return "two"

    assert (one(1), two(1), one(1), two(1)) == ("one", "two", "one", "two")


def test_namespaces_are_apart(memory_url: str) -> None:
    results = []
    for namespace in ("a", "b"):

        @RetrySafe(memory_url, namespace=namespace).once("x:{n}", scope="shared")
        def x(n: int) -> str:
            return namespace  # noqa: B023  (called before the loop goes on)

        results.append(x(1))
    assert results == ["a", "b"]


def test_nested_calls_on_one_store_do_not_mix(safe: RetrySafe) -> None:
    """PT completes the outer call under the inner one's key."""

    @safe.once("inner:{n}", policy=Policy(retention=5))
    def inner(n: int) -> str:
        return f"inner {n}"

    @safe.once("outer:{n}")
    def outer(n: int) -> list[str]:
        return [inner(n), inner(n + 1)]

    assert outer(1) == outer(1) == ["inner 1", "inner 2"]
    records = safe.execute(List()).records
    assert {record.state for record in records} == {State.COMPLETED}
    assert {record.retention for record in records} == {5_000_000, 2**53 - 1}
    assert safe.counters["completed"] == 3


def test_it_may_call_itself_for_another_key(safe: RetrySafe) -> None:
    @safe.once("fib:{n}")
    def fib(n: int) -> int:
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    assert fib(12) == 144
    assert safe.counters["new"] == 13


# Arguments ---------------------------------------------------------------------------------------


class Colour(Enum):
    RED = 1


@dataclass
class Order:
    id: int
    total: int


def test_other_arguments_under_the_same_key_are_refused(safe: RetrySafe) -> None:
    runs: list[int] = []

    @safe.once("pay:{order}")
    def pay(order: int, cents: int, note: str = "") -> None:
        runs.append(cents)

    pay(1, 100)
    pay(order=1, cents=100, note="")
    for call in (lambda: pay(1, 200), lambda: pay(1, 100, "x"), lambda: pay(1, 100.0)):  # type: ignore[arg-type]  # on purpose
        with pytest.raises(FingerprintMismatch, match=r"pay:\{1\}"):
            call()
    assert runs == [100]


def test_ignored_arguments_do_not_count(safe: RetrySafe) -> None:
    @safe.once("pay:{order}", ignore=("mailer", "trace"))
    def pay(order: int, mailer: Any, *, trace: str = "") -> str:
        return trace

    assert pay(1, object(), trace="first") == pay(1, object(), trace="second") == "first"


def test_rich_arguments_may_be_part_of_the_key(safe: RetrySafe) -> None:
    @safe.once("pay:{order}:{colour}")
    def pay(order: Order, colour: Colour) -> int:
        return order.total

    assert pay(Order(1, 10), Colour.RED) == pay(Order(1, 10), colour=Colour.RED) == 10
    assert pay(Order(1, 99), Colour.RED) == 99


def test_an_argument_that_cannot_be_compared_is_named(safe: RetrySafe) -> None:
    runs: list[int] = []

    @safe.once("pay:{order}")
    def pay(order: int, client: Any) -> None:
        runs.append(order)

    with pytest.raises(ArgumentError, match=r"'client' of .*pay.*ignore=\('client',\)"):
        pay(1, object())
    assert (runs, states(safe)) == ([], [])


@pytest.mark.parametrize("value", [None, ""])
def test_an_empty_key_value_is_refused(safe: RetrySafe, value: Any) -> None:
    @safe.once("pay:{order}")
    def pay(order: Any) -> None: ...

    with pytest.raises(TemplateError, match="order is"):
        pay(value)


def test_a_key_that_is_too_long_is_refused_with_a_fix(safe: RetrySafe) -> None:
    @safe.once("pay:{order}")
    def pay(order: str) -> None: ...

    with pytest.raises(MalformedKey, match="shorten a long one"):
        pay("x" * 2000)


def test_wrong_calls_fail_as_python_says(safe: RetrySafe) -> None:
    @safe.once("pay:{order}")
    def pay(order: int) -> None: ...

    with pytest.raises(TypeError, match="missing a required argument: 'order'"):
        pay()  # type: ignore[call-arg]  # that it fails is what is tested
    assert states(safe) == []


# Decorating --------------------------------------------------------------------------------------


def test_what_cannot_be_decorated(safe: RetrySafe) -> None:
    def generator(n: int) -> Any:
        yield n

    async def async_generator(n: int) -> Any:
        yield n

    class Caller:
        def __call__(self, n: int) -> None: ...

    for function in (generator, async_generator):
        with pytest.raises(UsageError, match=r"is a generator.*Return a list"):
            safe.once("x:{n}")(function)
    for thing in (staticmethod(generator), classmethod(generator), Caller, 5):
        with pytest.raises(UsageError, match="functions only"):
            safe.once("x:{n}")(thing)  # type: ignore[arg-type]  # that it is refused is what is tested
    for thing in (functools.partial(test_what_cannot_be_decorated, 1), Caller()):
        with pytest.raises(UsageError, match="no name of its own"):
            safe.once("x:{n}")(thing)


@pytest.mark.parametrize(
    ("template", "ignore", "error", "expected"),
    [
        ("x:{m}", (), UsageError, "names 'm', but .*f has no such argument; it has n, other"),
        ("x:{n}", ("mailer",), UsageError, "ignore names 'mailer'"),
        ("x:{n}", ("n",), TemplateError, "part of the key and ignored"),
        ("constant", (), TemplateError, "name at least one argument"),
        ("x:{n.y}", (), TemplateError, "plain name"),
    ],
)
def test_mistakes_are_found_when_decorating(
    safe: RetrySafe, template: str, ignore: Any, error: type[Exception], expected: str
) -> None:
    def f(n: int, other: int) -> None: ...

    with pytest.raises(error, match=expected):
        safe.once(template, ignore=ignore)(f)


# Failing -----------------------------------------------------------------------------------------


async def test_an_exception_is_not_a_result_and_it_may_run_again(safe: RetrySafe) -> None:
    runs: list[int] = []

    @safe.once("x:{n}")
    def sync(n: int) -> str:
        runs.append(n)
        if len(runs) < 3:
            raise ValueError(f"try {len(runs)}")
        return "done"

    for _ in range(2):
        with pytest.raises(ValueError, match="try"):
            sync(1)
    assert sync(1) == sync(1) == "done"
    assert len(runs) == 3

    @safe.once("x:{n}")
    async def asynchronous(n: int) -> str:
        runs.append(n)
        if len(runs) < 5:
            raise ValueError("again")
        return "done"

    with pytest.raises(ValueError, match="again"):
        await asynchronous(1)
    assert await asynchronous(1) == await asynchronous(1) == "done"
    assert len(runs) == 5


async def test_a_stored_failure_is_the_answer(safe: RetrySafe) -> None:
    runs: list[int] = []

    class Declined(Exception):
        pass

    @safe.once("pay:{n}", policy=Policy(failures="store"))
    def pay(n: int) -> None:
        runs.append(n)
        raise Declined("no money")

    @safe.once("pay:{n}", policy=Policy(failures="store"))
    async def pay_later(n: int) -> None:
        runs.append(n)
        raise Declined("\ud800")

    with pytest.raises(Declined):
        pay(1)
    with pytest.raises(Declined):
        await pay_later(1)
    for _ in range(2):
        with pytest.raises(StoredFailure, match="no money") as refused:
            pay(1)
        assert refused.value.kind.endswith("Declined")
        with pytest.raises(StoredFailure):
            await pay_later(1)
    assert len(runs) == 2


def test_a_result_equal_to_a_stored_failure_is_no_failure(safe: RetrySafe) -> None:
    @safe.once("x:{n}")
    def x(n: int) -> dict[str, str]:
        return {"type": "ValueError", "message": "no"}

    assert x(1) == x(1) == {"type": "ValueError", "message": "no"}


class Picky:
    """A codec that fails in its own way."""

    media_type = "text/x-picky"

    def encode(self, value: Any) -> bytes:
        return value.missing  # type: ignore[no-any-return]  # raises AttributeError

    def decode(self, data: bytes) -> Any:
        raise ZeroDivisionError


@pytest.mark.parametrize("codec", [None, Picky()])
def test_a_result_that_cannot_be_stored_does_not_run_twice(safe: RetrySafe, codec: Any) -> None:
    """idemptx and nodii run it again, or hang."""
    runs: list[int] = []
    endless: list[Any] = []
    endless.append(endless)
    results = {1: object(), 2: endless, 3: 10**5000}

    @safe.once("x:{n}", codec=codec)
    def x(n: int) -> Any:
        runs.append(n)
        return results[n]

    for n in results:
        with pytest.raises(ResultNotStorable, match=r"ran, but its result cannot be stored.*codec="):
            x(n)
        for _ in range(2):
            with pytest.raises(AnswerGone, match="unstorable"):
                x(n)
    assert runs == [1, 2, 3]


def test_a_codec_that_cannot_read_gives_a_corrupt_record(safe: RetrySafe) -> None:
    class Half(Picky):
        def encode(self, value: Any) -> bytes:
            return b"x"

    @safe.once("x:{n}", codec=Half())
    def x(n: int) -> None: ...

    x(1)
    with pytest.raises(CorruptRecord, match="ZeroDivisionError"):
        x(1)


def test_a_process_that_died_leaves_an_unknown_outcome(safe: RetrySafe) -> None:
    @safe.once("x:{n}")
    def x(n: int) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        x(1)
    with pytest.raises(OutcomeUnknown, match=r"x:\{1\}.*SystemExit"):
        x(1)


# Together ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_fifty_threads_one_effect(kind: str, request: pytest.FixtureRequest) -> None:
    safe = RetrySafe(request.getfixturevalue(f"{kind}_url"))
    runs: list[int] = []
    results: list[Any] = []
    together = threading.Barrier(50)

    @safe.once("x:{n}")
    def x(n: int) -> str:
        runs.append(n)
        return "done"

    def call() -> None:
        together.wait(PATIENCE)
        results.append(x(1))

    threads = [threading.Thread(target=call) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runs == [1]
    assert results == ["done"] * 50
    safe.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_fifty_tasks_one_effect(kind: str, request: pytest.FixtureRequest) -> None:
    runs: list[int] = []
    async with RetrySafe(request.getfixturevalue(f"{kind}_url")) as safe:

        @safe.once("x:{n}")
        async def x(n: int) -> str:
            runs.append(n)
            await asyncio.sleep(0.001)
            return "done"

        assert await asyncio.gather(*(x(1) for _ in range(50))) == ["done"] * 50
    assert runs == [1]


def test_a_second_caller_may_be_told_instead_of_waiting(safe: RetrySafe) -> None:
    began, go = threading.Event(), threading.Event()

    @safe.once("x:{n}", policy=Policy(busy="conflict"))
    def x(n: int) -> str:
        began.set()
        assert go.wait(PATIENCE)
        return "done"

    results: list[str] = []
    first = threading.Thread(target=lambda: results.append(x(1)))
    first.start()
    assert began.wait(PATIENCE)
    with pytest.raises(InProgress):
        x(1)
    go.set()
    first.join()
    assert results == ["done"]


# What models do not show of themselves -----------------------------------------------------------


class Card(pydantic.BaseModel):
    number: str = pydantic.Field(default="", exclude=True)


class Receipt(pydantic.BaseModel):
    order: int
    token: str = pydantic.Field(default="", exclude=True)


def test_another_card_does_not_get_the_receipt_of_the_first(safe: RetrySafe) -> None:
    @safe.once("pay:{order}")
    def pay(order: int, card: Card) -> str:
        return f"paid with {card.number}"

    assert pay(1, Card(number="4111")) == pay(1, Card(number="4111")) == "paid with 4111"
    with pytest.raises(FingerprintMismatch):
        pay(1, Card(number="5500"))


def test_a_record_of_the_older_release_is_replayed_where_its_form_told_everything(safe: RetrySafe) -> None:
    class Line(pydantic.BaseModel):
        item: str

    class Order(pydantic.BaseModel):
        lines: list[Line]

    @safe.once("ship:{number}")
    def ship(number: int, order: Order) -> str:
        return "shipped"

    order = Order(lines=[Line(item="a")])
    name = f"{ship.__module__}.{ship.__qualname__}"
    shown = {"\0type": type(order).__qualname__, "\0fields": order.model_dump()}
    older = fingerprint.fingerprint_text("call1", values.dumps([name, {"number": 7, "order": shown}]))
    task = Task(Key("ship:{7}", name, "function"), safe.namespace, name, older, Policy.preset("function"))
    answer = codecs.encode_result(codecs.JsonCodec(), "shipped before")
    granted = safe.execute(task.build_claim())
    assert granted.record is not None
    assert safe.execute(Complete(granted.record.id, granted.record.fence, answer))
    assert ship(7, order) == "shipped before"


def test_an_excluded_field_of_a_result_is_stored_sealed_or_refused(safe: RetrySafe) -> None:
    def issue(order: int) -> Receipt:
        runs.append(order)
        return Receipt(order=order, token="t0k")

    runs: list[int] = []
    with RetrySafe("memory://", keyring=KeyRing({"a": bytes(32)})) as sealed:
        kept = sealed.once("issue:{order}")(issue)
        assert (kept(1).token, kept(1).token, runs) == ("t0k", "t0k", [1])
    plain = safe.once("issue:{order}")(issue)
    with pytest.raises(ResultNotStorable, match="Set a key ring"):
        plain(2)
    with pytest.raises(AnswerGone, match="unstorable"):
        plain(2)
    assert runs == [1, 2]
