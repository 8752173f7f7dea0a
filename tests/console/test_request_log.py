"""For developers: requests as they come, and which field of a body changed between two sends of one key."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

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


def test_each_send_is_compared_with_the_first_of_its_key() -> None:
    requests = [
        seen(fields={"a": "1"}), seen(fields={"a": "1"}), seen(fields={"a": "2"}), seen(key="other", fields={"a": "3"}),
        seen(key="", fields={"a": "4"}), seen(path="/else", fields={"a": "5"}),
    ]  # fmt: skip
    found = annotate(requests)
    assert [each.sends for each in found] == [1, 2, 3, 1, 0, 1]
    assert [len(each.changes) for each in found] == [0, 0, 1, 0, 0, 0]


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
    outcomes = [each.outcome for each in LogFile(path).read()]
    assert outcomes[:2] == ["ran: a new claim", "replayed"]
    assert outcomes[2].startswith("refused: ")
    shown = text_of(Visitor(make_console(safe, request_log=path)).get("/requests"))
    assert "amount : 100 → 1000" in shown.replace("amount:", "amount :")
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
    assert LogFile(tmp_path / "none").read() == []
