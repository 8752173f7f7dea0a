"""Forms that are the same on every store: fingerprints, keys, codecs, receipts, what a queue or an inbox took in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.releases.forms import VALUES
from tests.releases.golden import derived
from tests.releases.places import SAME_DATABASE, World, place_for
from tests.releases.processes import Release

pytestmark = pytest.mark.xdist_group("releases")

JSON, FORM = "application/json", "application/x-www-form-urlencoded"


def parts(boundary: str, value: str) -> bytes:
    return f'--{boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n{value}\r\n--{boundary}--\r\n'.encode()


REQUESTS: dict[str, tuple[tuple[str, bytes], tuple[str, bytes], tuple[str, bytes]]] = {
    # the first one; what means the same; what does not
    "json": ((JSON, b'{"a":1,"b":"\\u00e9"}'), (JSON, ' { "b": "é", "a": 1 }'.encode()), (JSON, b'{"a":1.0,"b":"e"}')),
    "charset": ((JSON, b'{"a":1}'), (JSON + "; charset=utf-8", b'{"a":1}'), (JSON, b'{"a":1.0}')),
    "large": ((JSON, b"18446744073709551616"), (JSON, b" 18446744073709551616"), (JSON, b"18446744073709551617")),
    "twice": ((JSON, b'{"a":1,"a":2}'), (JSON, b'{"a": 1, "a": 2}'), (JSON, b'{"a":2}')),
    "nul": ((JSON, b'{"\\u0000a":1}'), (JSON, b'{ "\\u0000a":1}'), (JSON, b'{"a":1}')),
    "broken": ((JSON, b'{"a":'), (JSON, b'{"a":'), (JSON, b'{"a": ')),
    "vendor": (("application/x+json", b"[1]"), ("application/x+json", b"[ 1 ]"), (JSON, b"[1]")),
    "long": ((JSON, b'["' + b"x" * 70_000 + b'"]'), (JSON, b'["' + b"x" * 70_000 + b'"]'), (JSON, b'["x"]')),
    "form": ((FORM, b"a=1&b=%20"), (FORM, b"b=+&a=1"), (FORM, b"a=1&b=")),
    "parts": (
        ("multipart/form-data; boundary=x", parts("x", "1")),
        ("multipart/form-data; boundary=yy", parts("yy", "1")),
        ("multipart/form-data; boundary=x", parts("x", "2")),
    ),
    "text": (("text/plain", b"a"), ("text/plain", b"a"), ("text/plain", b"a ")),
    "nothing": (("text/plain", b""), ("text/plain", b""), ("text/html", b"")),
}


@pytest.fixture
def here(request: pytest.FixtureRequest, tmp_path: Path, old: Release, new: Release) -> World:
    """On SQLite: nothing of this depends on the store."""
    return World(place_for(request, tmp_path, "sqlite"), old, new)


@pytest.mark.store("sqlite")
def test_requests_are_recognised(here: World, first: str) -> None:
    begins, meets = here.sides(first)
    for name, asked in REQUESTS.items():
        replies = [
            side("request", key=name, content_type=kind, body=body)
            for side, (kind, body) in zip((begins, meets, meets), asked, strict=True)
        ]
        told = [(reply["status"], reply["replayed"]) for reply in replies]
        assert told == [(201, False), (201, True), (422, False)], name
    here.close()


@pytest.mark.store("sqlite")
def test_arguments_are_recognised_and_results_come_back(here: World, first: str) -> None:
    begins, meets = here.sides(first)
    for name in VALUES:
        done = begins.call("value", name)
        assert "result" in done, f"{name}: {done}"
        assert meets.call("value", name) == done, name
        assert meets.call("value", name, item="other")["error"] == "FingerprintMismatch", name
    assert here.counted("keep") == dict.fromkeys(VALUES, 1)
    here.close()


@pytest.mark.store("sqlite")
def test_keys_for_others_are_derived_alike(here: World) -> None:
    asked = [
        ["order-7", "stripe", "charge", "", False],
        ["order-7", "", "charge", "é", True],
        ["o", "a", "b", "", True],
    ]
    asked.append([b"\x00" * 16, "", "charge", "1", False])
    told = here.old("derive", keys=asked)
    assert here.new("derive", keys=asked) == told
    assert told[-1] == derived(b"\x00" * 16, "charge", 1)
    here.close()


@pytest.mark.parametrize("store", [pytest.param(store, marks=pytest.mark.store(store)) for store in SAME_DATABASE])
def test_a_receipt_of_one_is_read_by_the_other(
    request: pytest.FixtureRequest, tmp_path: Path, old: Release, new: Release, store: str, first: str
) -> None:
    """The transaction strength: the answer was committed with the rows."""
    world = World(place_for(request, tmp_path, store), old, new)
    begins, meets = world.sides(first)
    done, again = begins.call("transaction", "k")["result"], meets.call("transaction", "k")["result"]
    assert (done.pop("replayed"), again.pop("replayed")) == (False, True)
    assert done == again
    assert meets.call("transaction", "k", 501)["error"] == "FingerprintMismatch"
    assert world.orders() == ["k"]
    world.close()


def test_taken_in_by_one_is_handled_by_the_worker_of_the_other(world: World, first: str) -> None:
    takes, works = world.sides(first)
    assert takes.call("inbox", "e-1")["result"]["status"] == 200
    assert not world.effects()
    assert works("work")["finished"] == 1
    assert works.call("inbox", "e-1")["result"]["status"] == 200
    assert takes("work")["finished"] == 0
    assert world.counted("webhook") == {"e-1": 1}


def test_enqueued_by_one_is_run_by_the_worker_of_the_other(world: World, first: str) -> None:
    enqueues, works = world.sides(first)
    sent = enqueues.call("enqueue", "k")["result"]
    assert (sent["state"], sent["sent"]) == ("waiting", 1)
    again = works.call("enqueue", "k")["result"]
    assert (again["state"], again["sent"], again["id"]) == ("waiting", 0, sent["id"])
    ran = works.call("perform", "k", item=sent["id"])["result"]
    told = enqueues.call("enqueue", "k")["result"]
    assert (told["state"], told["sent"], told["result"]) == ("done", 0, ran)
    assert world.counted("job") == {"k": 1}
