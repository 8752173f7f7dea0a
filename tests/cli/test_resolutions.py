"""What a resolution may contain: one decision (operators/resolutions.py) that the command line and the console share. A
decision is final, so what contradicts itself or what no client could read is refused before anything is stored."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, Key, KeyRing, RetrySafe
from retrysafe.cli.main import main
from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.engine.resolving import convert_to_result
from retrysafe.errors import UsageError
from retrysafe.operators.key_actions import make_resolve
from retrysafe.operators.resolutions import GivenAnswer, decide_answer
from retrysafe.operators.session import open_on_safe
from retrysafe.testing import builders
from tests.console.visitors import Visitor, make_console, text_of

JSON = "application/json"


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/keys.db"
    assert main(["migrate", url]) == 0
    return url


@pytest.fixture
def safe(url: str) -> Iterator[RetrySafe]:
    with RetrySafe(url) as safe:
        yield safe


@pytest.fixture
def record(safe: RetrySafe) -> Record:
    return leave_unknown(safe)


def leave_unknown(safe: RetrySafe, key: str = "order-7") -> Record:
    """A guard over HTTP that a crash left: nothing of it is encrypted, also where a key ring is set."""
    claimed = safe.store.execute(builders.claim(key, now=1_000_000.0, target="POST /payments")).record
    found = safe.store.execute(Lookup(claimed.id)).record
    assert found is not None
    return found


# The decision: pure -------------------------------------------------------------------------------


def test_without_an_answer() -> None:
    assert decide_answer(happened=True, given=GivenAnswer()) is None
    assert decide_answer(happened=False, given=GivenAnswer()) is None


def test_an_answer_as_it_was_given() -> None:
    found = decide_answer(happened=True, given=GivenAnswer(True, b'{"id": 7}', 201, JSON))
    assert found == Answer(201, b'{"id": 7}', {"content-type": JSON})


def test_an_answer_without_a_body_has_no_content_type() -> None:
    assert decide_answer(happened=True, given=GivenAnswer(True, b"", 204, JSON)) == Answer(204)
    assert decide_answer(happened=True, given=GivenAnswer(True, b"", 201, "")) == Answer(201)


CONTRADICTIONS = [
    (False, GivenAnswer(True, b'{"id": 7}', 201), "did not happen"),
    (False, GivenAnswer(True), "did not happen"),
    (False, GivenAnswer(False, b'{"id": 7}'), "did not happen"),
    (True, GivenAnswer(False, b'{"id": 7}'), "9 bytes"),
    (True, GivenAnswer(False, status=201), "201"),
    (True, GivenAnswer(False, content_type="text/csv"), "text/csv"),
    (True, GivenAnswer(True, b"{}", 99), "99"),
]


@pytest.mark.parametrize(("happened", "given", "said"), CONTRADICTIONS)
def test_what_contradicts_itself_is_refused(happened: bool, given: GivenAnswer, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        decide_answer(happened=happened, given=given)


NO_JSON = [
    (JSON, b"{'id': 7}"),
    (JSON, b'{"id": 7'),
    (JSON, b'{"id": NaN}'),
    (JSON, b"[" * 100_000),
    (JSON, '{"id": "ä"}'.encode("latin-1")),
    (JSON, b""),
    ("application/problem+json; charset=utf-8", b"sent"),
    ("Application/JSON", b"sent"),
]


@pytest.mark.parametrize(("content_type", "body"), NO_JSON, ids=range(len(NO_JSON)))
def test_a_body_that_is_not_what_its_type_says(record: Record, content_type: str, body: bytes) -> None:
    with pytest.raises(UsageError, match="no JSON"):
        convert_to_result(record, Answer(201, body, {"Content-Type": content_type}))


@pytest.mark.parametrize(("content_type", "body"), [("text/csv", b"{'id"), (JSON, '{"id": "ä"}'.encode())])
def test_a_body_of_its_type(record: Record, content_type: str, body: bytes) -> None:
    given = Answer(201, body, {"content-type": content_type})
    assert convert_to_result(record, given) == given


def test_no_action_is_made_of_a_contradiction(safe: RetrySafe) -> None:
    with pytest.raises(UsageError, match="did not happen"):
        make_resolve(open_on_safe(safe), "x", happened=False, answer=Answer(201, {"id": 7}))


# The same decision on the command line, in the console and from Python ----------------------------


def fields(record: Record, **more: str) -> dict[str, str]:
    return {"because": "in their list", "attempt": str(record.attempt), "began": str(record.started), **more}


FORMS = [
    {"outcome": "did-not-happen", "with_answer": "1", "status": "201", "answer": '{"id": 7}'},
    {"outcome": "did-not-happen", "answer": '{"id": 7}'},
    {"outcome": "happened", "status": "201", "answer": '{"id": 7}'},
    {"outcome": "happened", "answer": '{"id": 7}'},
    {"outcome": "happened", "status": "201"},
]
BROKEN_FORMS = [
    {"outcome": "happened", "with_answer": "1", "answer": "{'id': 7}"},
    {"outcome": "happened", "with_answer": "1", "answer": ""},
]


@pytest.mark.parametrize(
    ("form", "status"), [(form, 400) for form in FORMS] + [(form, 409) for form in BROKEN_FORMS], ids=str
)
def test_the_console_refuses_it(safe: RetrySafe, record: Record, form: dict[str, str], status: int) -> None:
    visitor = Visitor(make_console(safe, actions=True))
    response = visitor.post(f"/keys/{record.id.hex()}/resolve", fields(record, **form))
    assert response.status == status, text_of(response)
    assert safe.store.execute(Lookup(record.id)).record == record
    assert len(safe.store.execute(List()).records) == 1, "no audit row either"


def test_a_form_that_nobody_changed_is_no_answer(safe: RetrySafe, record: Record) -> None:
    """The fields of the form have values before anybody types: those are not an answer."""
    visitor = Visitor(make_console(safe, actions=True))
    page = visitor.get(f"/keys/{record.id.hex()}")
    assert "final" in text_of(page), "the form says that a decision is final"
    sent = fields(record, outcome="happened", status="200", content_type=JSON, answer="")
    assert visitor.post(f"/keys/{record.id.hex()}/resolve", sent).status == 303
    after = safe.store.execute(Lookup(record.id)).record
    assert after is not None
    assert (after.state, after.answer.gone) == (State.COMPLETED, "forgotten")


@pytest.mark.parametrize(
    ("options", "body", "code"),
    [
        (("--did-not-happen", "--answer", "FILE"), '{"id": 7}', 2),
        (("--did-not-happen", "--status", "201"), "", 2),
        (("--happened", "--status", "201"), "", 2),
        (("--happened", "--content-type", "text/csv"), "", 2),
        (("--happened", "--answer", "FILE"), "{'id': 7}", 1),
        (("--happened", "--answer", "FILE"), "", 1),
    ],
)
def test_the_command_refuses_it(
    url: str, safe: RetrySafe, record: Record, tmp_path: Path, options: tuple[str, ...], body: str, code: int
) -> None:
    path = tmp_path / "answer.json"
    path.write_text(body)
    given = [str(path) if each == "FILE" else each for each in options]
    assert main(["keys", "resolve", url, "order-7", *given, "--because", "in their list"]) == code
    assert safe.store.execute(Lookup(record.id)).record == record


def test_the_help_says_that_a_decision_is_final(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["keys", "resolve", "--help"])
    assert "final" in capsys.readouterr().out


def test_python_refuses_broken_json(safe: RetrySafe, record: Record) -> None:
    broken = Answer(201, b"{'id': 7}", {"content-type": JSON})
    with pytest.raises(UsageError, match="no JSON"):
        safe.resolve(Key(record.key, record.scope), happened=True, answer=broken, because="in their list")
    assert safe.store.execute(Lookup(record.id)).record == record


# A key ring ---------------------------------------------------------------------------------------


@pytest.fixture
def sealed(url: str, safe: RetrySafe) -> Record:
    """A namespace with a key ring: one answer is stored encrypted, and one guard is left by a crash."""
    with RetrySafe(url, keyring=KeyRing({"2026-11": secrets.token_bytes(32)})) as application:
        application.once("pay-{order}", scope="pay")(lambda order: "ch_1")("1")
    return leave_unknown(safe)


def test_an_answer_is_refused_where_other_records_are_sealed(
    url: str, safe: RetrySafe, sealed: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answer.json"
    path.write_text("{}")
    said = ("--because", "in their list")
    assert main(["keys", "resolve", url, "order-7", "--happened", "--answer", str(path), *said]) == 1
    assert "key ring" in capsys.readouterr().err
    assert safe.store.execute(Lookup(sealed.id)).record == sealed
    assert main(["keys", "resolve", url, "order-7", "--happened", *said]) == 0, "without an answer no ring is needed"


def test_the_console_of_a_url_refuses_it_as_well(safe: RetrySafe, sealed: Record) -> None:
    visitor = Visitor(make_console(safe, actions=True))
    assert "no key ring" in text_of(visitor.get(f"/keys/{sealed.id.hex()}")), "the form warns"
    sent: dict[str, Any] = {"outcome": "happened", "with_answer": "1", "answer": "{}"}
    response = visitor.post(f"/keys/{sealed.id.hex()}/resolve", fields(sealed, **sent))
    assert (response.status, "key ring" in text_of(response)) == (409, True)
    assert safe.store.execute(Lookup(sealed.id)).record == sealed


def test_records_of_another_application_do_not_count(url: str, tmp_path: Path, sealed: Record) -> None:
    path = tmp_path / "answer.json"
    path.write_text("{}")
    with RetrySafe(url, namespace="plain") as other:
        other.store.execute(builders.claim("order-9", now=1_000_000.0, namespace="plain"))
    how = ("--happened", "--answer", str(path), "--because", "in their list")
    assert main(["keys", "resolve", url, "order-9", "--namespace", "plain", *how]) == 0
