"""`keys resolve` and `operations` for a person who decides: no command loses data, and every refusal names the right
one."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retrysafe import Answer, KeyRing, RetrySafe
from retrysafe.cli import operations
from retrysafe.cli.main import main
from retrysafe.core.ops import Forget, List, Lookup, Op
from retrysafe.core.states import State
from retrysafe.core.trace_context import encode_traceparent
from retrysafe.engine.codecs import JsonCodec
from retrysafe.engine.sealing import Sealer
from retrysafe.errors import CorruptRecord, StoreUnavailable
from retrysafe.operators.session import describe_left_open
from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_store
from retrysafe.testing import builders

RING = KeyRing({"2026-11": secrets.token_bytes(32)}, keyed_fingerprints=True)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/keys.db"
    store = open_store(url)
    store.migrate()
    store.close()
    return url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    yield store
    store.close()


@pytest.fixture
def answer_file(tmp_path: Path) -> str:
    path = tmp_path / "answer.json"
    path.write_text('{"charge": "ch_7"}')
    return str(path)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    assert main(arguments) == code
    return capsys.readouterr().err


# The audit row ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "how", "result"),
    [
        ("http", ("--happened", "--answer", "FILE", "--status", "201"), {"after": "completed", "status": 201}),
        ("http", ("--happened", "--answer", "FILE"), {"after": "completed", "status": 200}),
        # Nobody has an answer, or it has no status: the row names none.
        ("http", ("--happened",), {"after": "completed"}),
        ("http", ("--did-not-happen",), {"after": "released"}),
        ("function", ("--happened", "--answer", "FILE"), {"after": "completed"}),
    ],
)
def test_the_audit_row_of_a_resolution_has_the_status_that_was_stored(
    url: str,
    store: Store,
    answer_file: str,
    kind: Any,
    how: tuple[str, ...],
    result: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    store.execute(builders.claim("order-7", kind=kind, lease=0, now=None))
    words = (answer_file if word == "FILE" else word for word in how)
    assert main(("keys", "resolve", "order-7", *words, "--because", "in their list", url)) == 0
    capsys.readouterr()
    main(("audit", "--json", url))
    row = json.loads(capsys.readouterr().out)
    assert row["result"] == result
    assert "ch_7" not in json.dumps(row), "an audit row holds no body (S28)"


def test_a_status_is_not_told_as_a_number_of_records() -> None:
    """A row that could not be ended says how far the command came."""
    audit: Any = SimpleNamespace(result={"after": "completed", "status": 201}, id="ab" * 32, advice="look")
    assert describe_left_open(audit, StoreUnavailable("gone"), done=True).startswith(
        "the work was done; audit row abab"
    )


# Functions ----------------------------------------------------------------------------------------


@dataclass
class Charge:
    id: str
    cents: int = 0


class Cut(BaseException):
    """Stands for a process that was stopped half way."""


def leave_unknown(safe: RetrySafe, returns: Any, **options: Any) -> Callable[[str], Any]:
    def pay(order: str) -> Any:
        raise Cut

    pay.__annotations__["return"] = returns
    called = safe.once("pay-{order}", scope="pay", **options)(pay)
    with pytest.raises(Cut):
        called("7")
    return called


@pytest.mark.parametrize(
    ("returns", "given", "read"),
    [
        (str, '"ch_7"', "ch_7"),
        (Charge, '{"id": "ch_7"}', Charge("ch_7")),
        (list[Charge], '[{"id": "ch_7", "cents": 5}]', [Charge("ch_7", 5)]),
        (None, '{"charge": ["ch_7", null]}', {"charge": ["ch_7", None]}),
        (Decimal, '{"$Decimal": "9.50"}', Decimal("9.50")),
        (dict, '{"$$ref": 1}', {"$ref": 1}),
    ],
)
def test_the_answer_of_a_function_is_read_by_its_retry(
    url: str, tmp_path: Path, returns: Any, given: str, read: Any
) -> None:
    path = tmp_path / "result.json"
    path.write_text(given)
    with RetrySafe(url) as safe:
        pay = leave_unknown(safe, returns)
        saying = ("--happened", "--answer", str(path), "--because", "in their list")
        assert main(("keys", "resolve", url, 'pay-{"7"}', "--scope", "pay", *saying)) == 0
        assert pay("7") == read


def test_it_is_read_by_a_plain_codec_and_from_python(url: str) -> None:
    with RetrySafe(url) as safe:
        pay = leave_unknown(safe, dict, codec=JsonCodec())
        (record,) = safe.execute(List()).records
        safe.resolve(record.id, happened=True, answer=Answer(200, {"id": "ch_7"}), because="in their list")
        assert pay("7") == {"id": "ch_7"}


@pytest.mark.parametrize("given", ["ch_7", '{"$ref": 1}', '{"$Decimal": "nine"}', '{"$tuple": 5}'])
def test_what_no_retry_could_read_is_refused(
    url: str, tmp_path: Path, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    path.write_text(given)
    with RetrySafe(url) as safe:
        leave_unknown(safe, str)
        saying = ("--happened", "--answer", str(path), "--because", "in their list")
        told = refusal(capsys, "keys", "resolve", url, 'pay-{"7"}', "--scope", "pay", *saying)
        assert "its answer is what it returned, as JSON" in told
        assert safe.execute(List()).records[0].state is State.UNCERTAIN
        told = refusal(capsys, "keys", "resolve", url, 'pay-{"7"}', "--scope", "pay", "--status", "201", *saying)
        assert "no status; 201 was given" in told


# A key ring ---------------------------------------------------------------------------------------


def leave_with_sealed_input(store: Store) -> None:
    sealed: Op[object] = Sealer(RING).seal(replace(builders.claim("k", lease=0, now=None), input=b"order 7"))
    store.execute(sealed)


def leave_with_sealed_progress(store: Store) -> None:
    owner = store.execute(builders.claim("k", now=None))
    op: Op[object] = Sealer(RING).seal(builders.advance(owner, on_lapse="uncertain", lease=0, now=None))
    assert store.execute(op)


def leave_with_keyed_fingerprint(store: Store) -> None:
    plain = builders.claim("k", lease=0, now=None)
    store.execute(replace(plain, fingerprint=RING.key_fingerprint("2026-11", plain.fingerprint)))


@pytest.mark.parametrize("leave", [leave_with_sealed_input, leave_with_sealed_progress, leave_with_keyed_fingerprint])
def test_an_answer_for_a_sealed_record_is_refused_where_there_is_no_ring(
    leave: object, url: str, store: Store, answer_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The application could not read the answer (`CorruptRecord`), and a key can be resolved only once."""
    assert callable(leave)
    leave(store)
    output = refusal(capsys, "keys", "resolve", url, "k", "--happened", "--answer", answer_file, "--because", "x")
    assert "key ring" in output
    assert "safe.resolve(" in output
    assert main(["keys", "list", url, "--state", "uncertain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["key"] == "k", "still to be resolved"


@pytest.mark.parametrize(
    "how", [("--happened", "--because", "x"), ("--did-not-happen", "--because", "not in their list")]
)
def test_what_needs_no_ring_is_said_of_a_sealed_record(
    how: tuple[str, ...], url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_with_sealed_input(store)
    assert main(["keys", "resolve", url, "k", *how]) == 0


def test_what_cannot_be_read_is_forgotten_on_the_store_itself(store: Store) -> None:
    """The recipe of docs/howto/resolving.md: the record stays completed, without an answer to decrypt."""
    owner = store.execute(builders.claim("k", now=None))
    assert store.execute(builders.complete(owner, now=None)), "plain, where a ring is set"
    record = owner.record
    with RetrySafe(store, keyring=RING) as safe:
        with pytest.raises(CorruptRecord):
            safe.execute(Lookup(record.id))
        assert store.execute(Forget(record.id, record.fence))
        assert safe.execute(Lookup(record.id)).record.answer.gone == "forgotten"


# What is not uncertain ----------------------------------------------------------------------------


def test_what_was_released_is_not_said_to_be_somebodys(
    url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = store.execute(builders.claim("k", kind="operation", now=None))
    store.execute(builders.release(owner, now=None))
    output = refusal(capsys, "keys", "resolve", url, "k", "--happened", "--because", "x")
    assert "is released in attempt 1" in output
    assert "somebody else" not in output
    assert "operations resume MODULE:SAFE" in output


def test_what_is_claimed_is_said_to_be_at_work(url: str, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.execute(builders.claim("k", lease=3600, now=None))
    output = refusal(capsys, "keys", "resolve", url, "k", "--happened", "--because", "x")
    assert "is claimed in attempt 1" in output
    assert "somebody else" not in output
    assert "lease" in output


# Runs of operations -------------------------------------------------------------------------------


@pytest.fixture
def safe(monkeypatch: pytest.MonkeyPatch) -> Iterator[RetrySafe]:
    with RetrySafe("memory://") as safe:
        order = safe.operation("order")

        @order.body
        def body() -> Answer:
            return Answer(200)

        monkeypatch.setattr(operations, "load_safe", lambda text: safe)
        monkeypatch.setattr(safe, "close", lambda: None)  # several commands, one store in memory
        yield safe


def abandon(safe: RetrySafe, key: str, on_lapse: str) -> bytes:
    """A run whose lease has lapsed."""
    claim = builders.claim(key, scope="order", kind="operation", target="order@1", lease=1e-6, now=None)
    safe.store.execute(replace(claim, on_lapse=on_lapse))  # type: ignore[arg-type]
    return claim.id


def test_an_undo_without_a_reason_names_the_option(safe: RetrySafe, capsys: pytest.CaptureFixture[str]) -> None:
    output = refusal(capsys, "operations", "x:y", "--undo", abandon(safe, "k", "resume").hex(), code=2)
    assert "--because TEXT" in output
    assert "undo_id" not in output


def test_a_lapsed_run_is_uncertain_in_both_lists(safe: RetrySafe, capsys: pytest.CaptureFixture[str]) -> None:
    abandon(safe, "unknown", "uncertain")
    abandon(safe, "goes-on", "resume")
    assert main(["operations", "x:y", "--list", "--state", "uncertain"]) == 0
    output = capsys.readouterr().out
    assert "unknown" in output
    assert "goes-on" not in output


def test_each_run_is_listed_once(safe: RetrySafe, capsys: pytest.CaptureFixture[str]) -> None:
    abandon(safe, "unknown", "uncertain")
    assert main(["operations", "x:y", "--list"]) == 0
    assert capsys.readouterr().out.count("unknown") == 1


def test_a_lapsed_run_is_shown_as_lapsed(safe: RetrySafe, capsys: pytest.CaptureFixture[str]) -> None:
    run = abandon(safe, "k", "resume").hex()
    for arguments in (["--show", run], ["--list"]):
        assert main(["operations", "x:y", *arguments]) == 0
        assert "lapsed" in capsys.readouterr().out
    assert main(["operations", "x:y", "--show", run, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["state"], output["lapsed"]) == ("claimed", True)


def test_the_trace_of_the_first_run_is_shown(url: str, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    store.execute(builders.claim("traced", now=None, input=encode_traceparent(trace)))
    assert main(["keys", "show", url, "traced", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["traceparent"] == trace


def test_a_lapsed_key_is_shown_as_lapsed(url: str, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.execute(builders.claim("gone", lease=0, now=None))
    store.execute(builders.claim("living", lease=3600, now=None))
    store.execute(builders.claim("goes-on", lease=0, now=None, on_lapse="rerun"))
    for key, shown in (("gone", "uncertain (lapsed)"), ("goes-on", "claimed (lapsed)")):
        assert main(["keys", "show", url, key]) == 0
        assert shown in capsys.readouterr().out
    assert main(["keys", "list", url, "--state", "uncertain"]) == 0
    listed = capsys.readouterr().out
    assert "uncertain" in listed, "a person reads the word that was asked for"
    assert "gone" in listed
    assert main(["keys", "show", url, "living"]) == 0
    assert "lapsed)" not in capsys.readouterr().out
    assert main(["keys", "show", url, "gone", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["state"], output["lapsed"]) == ("claimed", True)
