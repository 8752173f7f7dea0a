"""For developers: requests as they come, and which field of a body changed between two sends of one key."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask

from retrysafe import RetrySafe
from retrysafe.console import request_log
from retrysafe.console.pages.traffic import annotate
from retrysafe.console.request_log import (
    LogFile,
    RequestLog,
    RequestLogWsgi,
    SeenRequest,
    compare_fields,
    flatten,
    parse_line,
    read_fields,
)
from retrysafe.fastapi import install
from retrysafe.testing.asgi_client import post
from tests.console.visitors import Visitor, make_console, text_of


def seen(**more: Any) -> SeenRequest:
    given = {"at": 1.0, "method": "POST", "path": "/pay", "key": "k", "status": 200, "replayed": False, "problem": ""}
    return SeenRequest(**{**given, "fields": {}, **more})


def test_a_body_is_flattened_by_path() -> None:
    assert flatten({"a": {"b": [1, {"c": None}]}, "d": []}) == {"a.b[0]": "1", "a.b[1].c": "null", "d": "[]"}
    assert flatten(7) == {"(body)": "7"}
    assert len(flatten({str(n): n for n in range(10_000)})) <= request_log.MAX_FIELDS + 1


def test_bodies_of_any_type_are_read() -> None:
    assert read_fields("application/json", b'{"a": 1}') == {"a": "1"}
    assert read_fields("application/x-www-form-urlencoded", b"a=1&b=") == {"a": "1", "b": ""}
    assert read_fields("application/json", b"{") == {"(body)": "{"}
    assert read_fields("text/plain", b"\xff") == {"(body)": "\\xff"}
    assert read_fields("", b"") == {}


def test_the_difference_is_by_field() -> None:
    changes = compare_fields({"amount": "100", "to": '"a"', "x": "1"}, {"amount": "1000", "to": '"a"', "y": "2"})
    assert [tuple(each) for each in changes] == [
        ("amount", "100", "1000"), ("x", "1", "(absent)"), ("y", "(absent)", "2"),
    ]  # fmt: skip


MISMATCH = {"status": 422, "problem": "used with another request", "problem_type": "mismatch"}


def test_each_send_is_compared_with_the_run_of_its_key() -> None:
    requests = [
        seen(fields={"a": "1"}), seen(fields={"a": "1"}, replayed=True), seen(fields={"a": "2"}, **MISMATCH),
        seen(key="other", fields={"a": "3"}), seen(key="", fields={"a": "4"}), seen(fields={"a": "5"}, **MISMATCH),
    ]  # fmt: skip
    found = annotate(requests)
    assert [each.sends for each in found] == [1, 2, 3, 1, 0, 4]
    assert [[change.field for change in each.changes] for each in found] == [[], [], ["a"], [], [], ["a"]]
    assert found[5].changes == [("a", "1", "5")], "with the run, not with the send before"


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"query": "amount=9"}, ("?amount", "5", "9")),
        ({"query": "amount=5&x=1"}, ("?x", "(absent)", "1")),
        ({"path": "/refund"}, ("(path)", "/pay", "/refund")),
        ({"method": "PUT"}, ("(method)", "POST", "PUT")),
        ({"media_type": "text/plain"}, ("(content type)", "application/json", "text/plain")),
    ],
)
def test_what_is_beside_the_body_is_compared_as_well(change: dict[str, Any], shown: tuple[str, str, str]) -> None:
    """The fingerprint has it, too: such a request was refused, and the page said that nothing had changed."""
    sent = {"query": "amount=5", "media_type": "application/json", "fields": {"to": '"acme"'}}
    _, refused = annotate([seen(**sent), seen(**{**sent, **change, **MISMATCH})])
    assert refused.changes == [shown]


def test_another_caller_has_keys_of_its_own() -> None:
    """A replay was shown with what another account had sent under the same key."""
    requests = [
        seen(fields={"a": "1"}, caller="ann"), seen(fields={"a": "7"}, caller="bob"),
        seen(fields={"a": "7"}, caller="bob", replayed=True), seen(fields={"a": "2"}, caller="ann", **MISMATCH),
    ]  # fmt: skip
    found = annotate(requests)
    assert [each.sends for each in found] == [1, 1, 2, 2]
    assert [each.changes for each in found] == [[], [], [], [("a", "1", "2")]]


def test_a_key_that_ran_again_is_compared_with_its_last_run() -> None:
    """It was released or had expired, or its scope is not what the Authorization header says."""
    found = annotate([seen(fields={"a": "1"}), seen(fields={"a": "2"}), seen(fields={"a": "2"}, replayed=True)])
    assert [each.changes for each in found] == [[], [], []]


def test_a_difference_that_is_in_no_field_is_not_called_nothing() -> None:
    """Duplicate names in an object, or a body that is longer than what is kept."""
    alone, refused = annotate([seen(), seen(**MISMATCH)])
    assert (alone.remark, refused.remark) == ("–", "no field that is kept here")
    (orphan,) = annotate([seen(**MISMATCH)])
    assert orphan.remark == "the request that ran is not in the file"
    _, same = annotate([seen(), seen(replayed=True)])
    assert same.remark == "nothing"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({}, "ran: a new claim"),
        ({"replayed": True}, "replayed"),
        ({"replayed": True, "status": 500, "problem": "The request failed", "problem_type": "failed"}, "replayed"),
        ({"status": 500, "problem": "The request failed", "problem_type": "failed"}, "ran: The request failed"),
        ({"status": 402, "problem": "Card declined", "problem_type": ""}, "ran: a new claim"),
        (MISMATCH, "refused: used with another request"),
        ({"key": ""}, "ran without a key"),
    ],
)
def test_what_became_of_a_request(answer: dict[str, Any], outcome: str) -> None:
    """A handler's own problem was called a refusal, and so was a handler that raised."""
    assert seen(**answer).outcome == outcome


async def test_an_api_beside_the_console(tmp_path: Path, safe: RetrySafe) -> None:
    """New, replayed, and refused because a field changed, as the page of the console shows them."""
    app, path = FastAPI(), tmp_path / "requests.jsonl"

    @app.post("/pay")
    def pay(body: dict[str, Any]) -> dict[str, Any]:
        return {"paid": body["amount"]}

    install(app, safe=safe, scope=lambda view: "me")
    app.add_middleware(RequestLog, path=path)
    for body in (b'{"amount": 100}', b'{"amount": 100}', b'{"amount": 1000}'):
        await post(app, "/pay", "order-7", body)
    await post(app, "/pay", None, b'{"amount": 5}')
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test") as client:
        await client.post("/pay?now=1", json={"amount": 100}, headers={"Idempotency-Key": "order-7"})
    outcomes = [each.outcome for each in LogFile(path).read()]
    assert outcomes[:2] == ["ran: a new claim", "replayed"]
    assert outcomes[2].startswith("refused: ")
    shown = text_of(Visitor(make_console(safe, request_log=path)).get("/requests"))
    assert "amount : 100 → 1000" in shown.replace("amount:", "amount :")
    assert "?now : (absent) → 1" in shown.replace("?now:", "?now :")
    assert "send 3" in shown
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_flask_writes_the_same(tmp_path: Path) -> None:
    app, path = Flask("shop"), tmp_path / "requests.jsonl"
    app.add_url_rule("/pay", view_func=lambda: {"ok": True}, methods=["GET", "POST"])
    app.wsgi_app = RequestLogWsgi(app.wsgi_app, path)  # type: ignore[method-assign]
    client = app.test_client()
    answer = client.post("/pay", json={"amount": 1}, headers={"Idempotency-Key": "k"})
    assert answer.json == {"ok": True}
    client.get("/pay")
    (found,) = LogFile(path).read()
    assert (found.method, found.path, found.key, found.status, dict(found.fields)) == (
        "POST", "/pay", "k", 200, {"amount": "1"},
    )  # fmt: skip


def test_the_file_stays_small_and_odd_lines_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "MAX_FILE_BYTES", 20_000)
    log = LogFile(tmp_path / "requests.jsonl")
    for number in range(1_000):
        log.append(seen(key=f"k{number}"))
    assert log.path.stat().st_size <= 25_000
    assert log.read()[-1].key == "k999"
    with log.path.open("ab") as file:
        file.write(b'{"at": 1}\nnot json\n[]\n')
    assert log.read()[-1].key == "k999"
    assert parse_line(json.dumps(seen()._asdict()).encode()) == seen()
    for at in ("NaN", "-1", "1e300", '"soon"'):
        assert parse_line(json.dumps(seen()._asdict()).replace("1.0", at).encode()) is None
    assert LogFile(tmp_path / "none").read() == []


async def test_half_of_a_pair_of_surrogates_is_written_as_text(tmp_path: Path, safe: RetrySafe) -> None:
    """JSON can name one, and UTF-8 has none: the request was answered, and then the middleware failed."""
    app, path = FastAPI(), tmp_path / "requests.jsonl"

    @app.post("/pay")
    def pay(body: dict[str, Any]) -> dict[str, Any]:
        return {"fields": len(body)}

    app.add_middleware(RequestLog, path=path)
    await post(app, "/pay", "order-7", b'{"to": "\\ud800", "\\udfff": 1}')
    LogFile(path).append(seen(key="order-7", fields={"to": "2"}, **MISMATCH))
    found, _ = LogFile(path).read()
    assert dict(found.fields) == {"to": '"\\ud800"', "?": "1"}
    assert "\\ud800" in text_of(Visitor(make_console(safe, request_log=path)).get("/requests"))


@pytest.mark.parametrize(
    ("environ", "seen_by_app"),
    [
        ({"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}, b"amount=1"),
        ({"CONTENT_LENGTH": "8"}, b"amount=1"),
        ({"CONTENT_LENGTH": "x"}, b""),
        ({}, b""),
    ],
    ids=["pieces", "length", "no number", "none"],
)
def test_the_application_gets_its_whole_body(tmp_path: Path, environ: dict[str, Any], seen_by_app: bytes) -> None:
    """A body that came in pieces was lost on its way to a Flask application."""
    bodies: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        bodies.append(environ["wsgi.input"].read())
        start_response("200 OK", [])
        return [b"ok"]

    asked = {"REQUEST_METHOD": "POST", "PATH_INFO": "/pay", "wsgi.input": io.BytesIO(b"amount=1"), **environ}
    list(RequestLogWsgi(app, tmp_path / "r.jsonl")(asked, lambda *_: None))
    assert bodies == [seen_by_app]
