"""A deployment between two attempts (rule 16, I35): the other code continues rightly, or refuses visibly. No cell
charges twice, refunds what was paid, or tells the client to take another key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, Key, RetrySafe
from retrysafe.core.fingerprint import fingerprint_http
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import FingerprintMismatch, NotFinished, OperationChanged
from retrysafe.operations.steps import read_type_hints
from tests.opening import COLOURS
from tests.operations.world import World, make_world

PLACES = [
    pytest.param(
        (store, mode),
        id=f"{store}-{mode}",
        marks=[pytest.mark.store(store), *([] if (store, mode) == ("sqlite", "sync") else [pytest.mark.campaign])],
    )
    for store in ("sqlite", "postgres")
    for mode in COLOURS
]


@pytest.fixture(params=PLACES)
def w(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = make_world(request, tmp_path, *request.param)
    yield world
    world.close()


class Killed(BaseException):
    """Stands for SIGKILL: the code under test does not catch it."""


@dataclass
class OrderIn:
    item: str
    cents: int


OldOrder = OrderIn


@dataclass
class WithNote:
    item: str
    cents: int
    note: str = ""


@dataclass
class Other:
    """Nothing of the old type fits."""

    basket: int


@dataclass
class Shop:
    """What happened at the providers, from all processes."""

    charges: dict[str, str]
    shipped: set[str]
    refunds: list[str]
    checked: set[str]


def new_shop() -> Shop:
    return Shop({}, set(), [], set())


BOUNDARIES = ("insert", "charge:before", "charge:after", "ship:before", "ship:after", "finish")


class Code:
    """One version of the user's program on a store. `dies` is where its process is killed."""

    def __init__(self, w: World, shop: Shop, version: str, forms: str, dies: str = "") -> None:
        self.w, self.shop, self.dies = w, shop, dies
        self.written: list[Record] = []
        self.safe = RetrySafe(w.url, tx=w.safe.tx, forms=forms)  # type: ignore[arg-type]
        self.typed: Any = {"field added": WithNote, "type changed": Other}.get(version, OrderIn)
        self.op = op = self.safe.operation("order")
        before, after = version == "step added before", version == "step added after"
        service = "another" if version == "service changed" else ""
        bound = {"o": self.typed, "return": Answer}

        @w.local(op)
        def insert(tx: Any, item: str) -> str:
            yield from w.insert(tx, item)
            self.meet("insert")
            return item

        @w.foreign(op)
        def check(item: str, *, key: str) -> str:
            shop.checked.add(key)
            return item

        def refund(item: str, result: Any, key: str) -> None:
            shop.refunds.append(item)

        @w.foreign(op, undo=w.in_mode(refund), service=service)
        def charge(item: str, *, key: str) -> str:
            self.meet("charge:before")
            made = shop.charges.setdefault(key, item)
            self.meet("charge:after")
            return made

        @w.foreign(op, undo=w.in_mode(refund))
        def charge_v2(item: str, *, key: str) -> str:
            self.meet("charge:before")
            made = shop.charges.setdefault(key, item)
            self.meet("charge:after")
            return made

        @w.local(op)
        def note(tx: Any, item: str) -> None:
            yield from w.insert(tx, f"note {item}")

        @w.foreign(op, service=service)
        def ship(item: str, *, key: str) -> str:
            self.meet("ship:before")
            shop.shipped.add(key)
            self.meet("ship:after")
            return item

        @w.local(op)
        def finish(tx: Any, item: str) -> Answer:
            yield from w.insert(tx, f"done {item}")
            self.meet("finish")
            return Answer(201, {"item": item})

        def body(o: Any) -> Any:
            item = yield lambda: insert(o.item if hasattr(o, "item") else "?")
            if before:
                yield lambda: check(item)
            if version == "local step added before":
                yield lambda: note(item)
            yield lambda: (charge_v2 if version == "another step in its place" else charge)(item)
            if after:
                yield lambda: check(item)
            if version != "step removed":
                yield lambda: ship(item)
            return (yield lambda: finish(item))

        if version == "body renamed":
            body.__name__ = body.__qualname__ = "another_name"
        body.__annotations__ = bound
        op.body(w.in_mode(body))

    def meet(self, where: str) -> None:
        if where == self.dies:
            self.written.append(self.w.record())
            raise Killed

    def __call__(self) -> Any:
        o = Other(7) if self.typed is Other else self.typed("tea", 5)
        return self.w.run(self.op(o, key="k"))

    def close(self) -> None:
        if self.w.loop is not None:
            self.w.loop.run(self.safe.aclose())
        else:
            self.safe.close()


def killed(w: World, code: Code, busy: bool = False) -> None:
    """Run it until it is killed: the record is as it was at that moment, and its lease lapses. `busy`: its
    process has finished another one before, and knows which step follows which."""
    if busy:
        dies, code.dies = code.dies, ""
        assert told(code) == "finished"
        w.sql(f"DELETE FROM {w.keys}")
        w.sql(f"DELETE FROM {w.orders}")
        code.shop.charges.clear()
        code.shop.shipped.clear()
        code.shop.checked.clear()
        code.dies = dies
    with pytest.raises(Killed):
        code()
    died = code.written[0]
    w.sql(
        f"UPDATE {w.keys} SET state = 'claimed', lease_until = started + 1, on_lapse = 'resume', note = '', "
        "completed = 0, point = ?, progress = ?",
        *(died.point, died.progress),
    )
    code.close()


def told(code: Callable[[], Any]) -> str:
    try:
        answer = code()
    except OperationChanged:
        return "refused"
    assert answer == Answer(201, {"item": "tea"})
    return "finished"


CHANGES = (
    *("none", "field added", "step added before", "local step added before", "step added after", "step removed"),
    *("another step in its place", "service changed", "body renamed"),
)


CELLS = [
    pytest.param(change, way, boundary, id=f"{change}-{way}-{boundary}")
    for change in CHANGES
    for way in ("forward", "backward")
    for boundary in BOUNDARIES
    if not (change == "step removed" and way == "backward" and boundary.startswith("ship"))  # it never comes there
]


def go_on(w: World, boundary: str, first: str, second: str, forms: str, busy: bool = False) -> str:
    shop = new_shop()
    killed(w, Code(w, shop, first, forms, dies=boundary), busy)
    sent = (set(shop.charges), set(shop.shipped), set(shop.checked))
    other = Code(w, shop, second, forms)
    how = told(other)
    other.close()
    if how == "refused":
        assert (set(shop.charges), set(shop.shipped), set(shop.checked)) == sent, "nothing is sent before it refuses"
        record = w.record()
        assert record.state in (State.RELEASED, State.CLAIMED), "it waits for the code that began it"
        if record.state is State.RELEASED:
            assert "OperationChanged" in record.note or "begun by other code" in record.note
        same = Code(w, shop, first, forms)
        assert told(same) == "finished"
        same.close()
    assert (len(shop.charges), shop.refunds) == (1, [])
    assert len(shop.shipped) <= 1
    assert w.items().count("tea") == 1
    assert w.items().count("done tea") == 1
    return how


@pytest.mark.parametrize(("change", "way", "boundary"), CELLS)
def test_the_matrix(w: World, change: str, way: str, boundary: str) -> None:
    first, second = ("none", change) if way == "forward" else (change, "none")
    how = go_on(w, boundary, first, second, "current")
    if change in ("none", "body renamed") or second == "field added":
        assert how == "finished"


@pytest.mark.parametrize(("change", "way", "boundary"), CELLS)
@pytest.mark.parametrize("busy", [False, True], ids=["new", "busy"])
def test_the_matrix_in_the_forms_of_the_release_before(
    w: World, change: str, way: str, boundary: str, busy: bool
) -> None:
    first, second = ("none", change) if way == "forward" else (change, "none")
    how = go_on(w, boundary, first, second, "previous", busy)
    if change in ("none", "body renamed") or second == "field added":
        assert how == "finished"


@pytest.mark.parametrize("busy", [False, True], ids=["new", "busy"])
@pytest.mark.parametrize("where", ["charge:before", "charge:after"])
def test_by_default_a_step_before_the_charge_is_refused(w: World, where: str, busy: bool) -> None:
    """Its key would be another one. The code that began it finds everything as it was."""
    assert go_on(w, where, "none", "step added before", "previous", busy) == "refused"


def test_a_local_step_before_the_charge_does_not_change_its_key(w: World) -> None:
    """Killed inside the charge, which left no trace but at the provider."""
    assert go_on(w, "charge:after", "none", "local step added before", "current") == "finished"


@pytest.mark.parametrize("change", ["step added before", "another step in its place", "service changed"])
@pytest.mark.parametrize("forms", ["previous", "current"])
def test_what_may_be_the_charge_under_another_key_is_refused(w: World, forms: str, change: str) -> None:
    assert go_on(w, "charge:after", "none", change, forms) == "refused"


@pytest.mark.parametrize("forms", ["previous", "current"])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_an_input_that_cannot_be_read_is_left_alone_however_often_it_is_tried(
    w: World, boundary: str, forms: str
) -> None:
    """Ten refusals are not ten failures: the paid order is not refunded, and its client keeps its key."""
    shop = new_shop()
    killed(w, Code(w, shop, "none", forms, dies=boundary))
    changed = Code(w, shop, "type changed", forms)
    changed.op.max_attempts = 2
    for _ in range(4):
        w.age(600)
        with pytest.raises(OperationChanged):
            w.run(changed.op.resume(w.record()))
    with pytest.raises(OperationChanged):
        changed()
    changed.close()
    assert (w.state(), shop.refunds) == (State.RELEASED, [])
    same = Code(w, shop, "none", forms)
    same.op.max_attempts = 2
    assert told(same) == "finished"
    same.close()
    assert (len(shop.charges), shop.refunds) == (1, [])


def test_another_request_is_still_another_request(w: World) -> None:
    shop = new_shop()
    code = Code(w, shop, "none", "current")
    assert told(code) == "finished"
    for other in (OrderIn("tea", 6), OrderIn("milk", 5)):
        with pytest.raises(FingerprintMismatch):
            w.run(code.op(other, key="k"))
    code.close()
    newer = Code(w, shop, "field added", "current")
    assert told(newer) == "finished"
    with pytest.raises(FingerprintMismatch):
        w.run(newer.op(WithNote("tea", 5, "gift"), key="k"))
    newer.close()
    assert len(shop.charges) == 1


@pytest.mark.parametrize("over_http", [False, True])
@pytest.mark.parametrize("forms", ["previous", "current"])
def test_after_a_rollback_a_finished_run_is_replayed(w: World, forms: str, over_http: bool) -> None:
    """Newer code finished it, with a field that this code does not have. Its answer needs no input."""
    shop = new_shop()
    request = fingerprint_http("POST", "/orders", "", "application/json", [b'{"item":"tea","cents":5,"note":"gift"}'])
    key = Key("k", "account", request=request) if over_http else Key("k", "account")
    newer = Code(w, shop, "field added", forms)
    assert w.run(newer.op(WithNote("tea", 5, "gift"), key=key)).status == 201
    newer.close()
    older = Code(w, shop, "none", forms)
    ended = w.run(older.op.start(OrderIn("tea", 5), key=key))
    assert (ended.answer, ended.replayed) == (Answer(201, {"item": "tea"}), True)
    with pytest.raises(OperationChanged):
        w.run(older.op(OrderIn("tea", 6), key=Key("k", "account")))
    older.close()
    assert len(shop.charges) == 1


@pytest.mark.parametrize("forms", ["previous", "current"])
def test_after_a_rollback_an_unfinished_run_is_left_to_the_newer_code(w: World, forms: str) -> None:
    shop = new_shop()
    newer = Code(w, shop, "field added", forms, dies="ship:before")
    with pytest.raises(Killed):
        w.run(newer.op(WithNote("tea", 5, "gift"), key="k"))
    newer.close()
    older = Code(w, shop, "none", forms)
    with pytest.raises(OperationChanged):
        older()
    older.close()
    newer = Code(w, shop, "field added", forms)
    assert w.run(newer.op(WithNote("tea", 5, "gift"), key="k")).status == 201
    newer.close()
    assert len(shop.charges) == 1


@dataclass
class OtherDefault:
    item: str
    cents: int
    note: str = "a new default"


@pytest.mark.parametrize("forms", ["previous", "current"])
def test_over_http_the_same_bytes_are_the_same_request(w: World, forms: str) -> None:
    """However this code reads them: here a default was changed, so the arguments are others."""
    shop = new_shop()
    request = fingerprint_http("POST", "/orders", "", "application/json", [b'{"item":"tea","cents":5}'])
    key = Key("k", "account", request=request)
    first = Code(w, shop, "field added", forms)
    assert w.run(first.op(WithNote("tea", 5), key=key)).status == 201
    first.close()
    newer = Code(w, shop, "field added", forms)
    newer.op._body.__annotations__["o"] = OtherDefault  # type: ignore[union-attr]
    read_type_hints.cache_clear()
    if forms == "current":
        assert w.run(newer.op(OtherDefault("tea", 5), key=key)).status == 201
    else:
        with pytest.raises(FingerprintMismatch):
            w.run(newer.op(OtherDefault("tea", 5), key=key))
    other = Key(
        "k", "account", request=fingerprint_http("POST", "/orders", "", "application/json", [b'{"item":"milk"}'])
    )
    with pytest.raises(FingerprintMismatch):
        w.run(newer.op(OtherDefault("milk", 5), key=other))
    newer.close()
    assert len(shop.charges) == 1


@pytest.mark.parametrize("forms", ["previous", "current"])
def test_both_forms_of_a_request_are_accepted(w: World, forms: str) -> None:
    """What one setting wrote the other finds: the setting can be changed under a running shop."""
    shop = new_shop()
    key = Key("k", "account", request=fingerprint_http("POST", "/orders", "", "application/json", [b"{}"]))
    first = Code(w, shop, "none", forms)
    assert w.run(first.op(OrderIn("tea", 5), key=key)).status == 201
    first.close()
    other = Code(w, shop, "none", "previous" if forms == "current" else "current")
    ended = w.run(other.op.start(OrderIn("tea", 5), key=key))
    assert ended.replayed
    other.close()


@pytest.mark.parametrize("forms", ["previous", "current"])
def test_a_begun_step_is_not_sent_with_other_arguments(w: World, forms: str) -> None:
    """Five euros may have been charged under this key; it must not become six. What is over may differ: an event."""
    sent: list[tuple[str, int]] = []

    def declare(cents: int, clock: int, fails: bool) -> Any:
        safe = RetrySafe(w.url, tx=w.safe.tx, forms=forms)  # type: ignore[arg-type]
        op = safe.operation("paying")

        @w.foreign(op)
        def note(at: int, *, key: str) -> int:
            return at

        @w.foreign(op)
        def charge(cents: int, currency: str = "eur", *, key: str) -> str:
            sent.append((key, cents))
            if fails:
                raise ConnectionError("no answer")
            return "ch"

        @w.body(op)
        def body() -> Answer:
            yield lambda: note(clock)
            yield lambda: charge(cents)
            return Answer(201, {})

        return op

    def run(op: Any) -> Any:
        try:
            return w.run(op(key="k"))
        finally:
            if w.loop is not None:
                w.loop.run(op.safe.aclose())
            else:
                op.safe.close()

    with pytest.raises(NotFinished):
        run(declare(5, 1, fails=True))
    tried = len(sent)
    with pytest.raises(OperationChanged, match="'charge' was begun with other arguments"):
        run(declare(6, 1, fails=False))
    assert len(sent) == tried
    last = declare(5, 2, fails=False)
    assert run(last).status == 201
    assert last.safe.counters["step_changed"] == 1
    assert len(set(sent)) == 1
