"""What an operator who had only the documents mistyped or misread: each is an error or a hint, and never good news."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from retrysafe.cli.doctor import find_code
from retrysafe.cli.main import main
from retrysafe.errors import StoreURLError
from retrysafe.operators import name_check
from retrysafe.stores.diagnosis import Diagnosis
from retrysafe.stores.redis.urls import parse_url
from retrysafe.stores.registry import open_store
from retrysafe.stores.sql.names import build_names
from retrysafe.stores.sql.schema_doctor import check_schema
from retrysafe.stores.sql.schema_state import LOSSES, SchemaState
from retrysafe.testing.builders import claim, complete

BECAUSE = ("--because", "a look")


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/app.db"
    assert main(["migrate", url]) == 0
    store = open_store(url)
    store.execute(claim("lost", scope="acct-ann", lease=0, now=None))
    done = store.execute(claim("order-8", scope="acct-ann", namespace="shop", now=None))
    store.execute(complete(done, now=None))
    store.close()
    return url


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> str:
    capsys.readouterr()
    try:
        found = main(words)
    except SystemExit as ended:  # argparse
        found = int(ended.code or 0)
    shown = capsys.readouterr()
    assert found == code, shown
    return shown.err


# Stores -------------------------------------------------------------------------------------------


def test_two_stores_are_refused(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    for words in (["--url", url, other], [other, "--url", url], [f"--url={url}", other], [url, other]):
        assert other in told(capsys, "keys", "list", *words, code=2), "it names both"
    assert "secret" not in told(capsys, "keys", "list", url, "redis://:secret@127.0.0.1/0", code=2)


@pytest.mark.parametrize("path", ["/x", "/1x", "/0/1", "/-1"])
@pytest.mark.parametrize("scheme", ["redis://127.0.0.1:6379", "redis+sentinel://127.0.0.1:26379"])
def test_a_database_that_is_no_number_is_an_error(scheme: str, path: str) -> None:
    with pytest.raises(StoreURLError, match=f"'{path[1:]}'"):
        parse_url(f"{scheme}{path}?master=m")


@pytest.mark.parametrize("path", ["", "/", "/0", "/15"])
def test_a_database_that_is_a_number(path: str) -> None:
    assert parse_url(f"redis://127.0.0.1:6379{path}").url.endswith(path)


def test_the_doctor_fails_on_an_old_schema() -> None:
    """It is the gate of a deployment: code of this release does not work on that schema."""
    state = SchemaState(3, 1, frozenset(LOSSES))
    found = Diagnosis("PostgreSQL", tuple(check_schema(state, build_names(), 6)))
    assert find_code(found, "exactly-once-capable") == 1
    assert find_code(found, "best-effort") == 1, "no guarantee is low enough for it"
    newest = Diagnosis("PostgreSQL", tuple(check_schema(state._replace(version=6), build_names(), 6)))
    assert find_code(newest, "exactly-once-capable") == 0


def test_a_migration_that_refuses_is_no_store_out_of_reach(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as file, file:
        file.execute("DROP TABLE retrysafe_keys")
    assert "retrysafe_keys" in told(capsys, "migrate", url, code=1)


# Names --------------------------------------------------------------------------------------------


def test_an_id_of_another_application_says_which(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    digits = claim("order-8", scope="acct-ann", namespace="shop").id.hex()[:12]
    found = told(capsys, "keys", "forget", url, digits, "--id", *BECAUSE, code=3)
    assert "namespace 'default'" in found
    assert "--namespace shop" in found


def test_a_wrong_scope_is_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "keys", "resolve", url, "lost", "--scope", "ann", "--happened", *BECAUSE, code=3)
    assert "scope 'ann'" in found


@pytest.mark.parametrize(
    "words",
    [
        ("stats", "--namespace", "nosuch2"),
        ("keys", "list", "--namespace", "nosuch2"),
        ("keys", "list", "--state", "uncertain", "--scope", "nosuch2"),
        ("trigger", "crash", "--namespace", "nosuch2", *BECAUSE),
    ],
)
def test_a_name_that_no_record_has_is_said(
    url: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, *words, url, code=0)
    assert "no record of" in found
    assert "'nosuch2'" in found


@pytest.mark.parametrize(
    "words",
    [
        ("stats", "--namespace", "default"),
        ("stats",),
        ("stats", "--namespace", "shop"),
        ("keys", "list", "--state", "uncertain", "--scope", "acct-ann", "--namespace", "shop"),
        ("trigger", "crash", *BECAUSE),
    ],
)
def test_a_name_that_has_records_is_not(url: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert "no record of" not in told(capsys, *words, url, code=0)


def test_an_export_of_nothing_is_not_found(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no record of" in told(capsys, "keys", "export", url, "--scope", "nosuch2", code=3)
    told(capsys, "keys", "export", url, "--scope", "acct-ann", "--state", "released", code=0)
    told(capsys, "keys", "export", url, "--scope", "acct-ann", "--kind", "job", code=0)
    told(capsys, "keys", "export", url, code=0)


def test_what_was_read_of_the_store_is_said_truly(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that had read every record said that there is none "among the first 10,000"."""
    monkeypatch.setattr(name_check, "MAX_CHECKED_RECORDS", 10)
    store = open_store(url)
    store.execute_many([claim(f"k{number}", scope="acme", now=None) for number in range(30)])
    store.close()
    found = told(capsys, "keys", "export", url, "--scope", "nosuch2", code=3)
    assert "0 written: there is no record of scope 'nosuch2': check the spelling" in found
    found = told(capsys, "keys", "export", url, "--scope", "nosuch2", "--state", "released", code=3)
    assert "0 written: 10 records of the store were checked, and none is of scope 'nosuch2'; there are more" in found


# What is printed ----------------------------------------------------------------------------------


def test_figures_have_headings_in_a_pipe(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["stats", url]) == 0
    assert "kind       target" in capsys.readouterr().out


def test_the_printed_command_has_the_status(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["keys", "why", url, "lost"]) == 0
    assert "--happened [--answer FILE --status N] | --did-not-happen" in capsys.readouterr().out


# Drills -------------------------------------------------------------------------------------------


@contextmanager
def serve(answer: tuple[int, dict[str, str], bytes]) -> Iterator[str]:
    """An API that answers every request in the same way."""
    status, headers, body = answer

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *parts: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/payments"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


INVALID = (422, {"content-type": "application/json"}, b'{"detail": [{"loc": ["header", "x-account"]}]}')
MISMATCH = (422, {"content-type": "application/problem+json"}, b'{"type": "urn:retrysafe:problem:mismatch"}')
CREATED = (201, {"content-type": "application/json"}, b"{}")


@pytest.mark.parametrize("drill", ["retry-storm", "mismatch"])
def test_a_drill_that_the_application_refused_is_no_success(drill: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(INVALID) as api:
        assert "422" in told(capsys, "trigger", drill, api, "--times", "3", code=1)


def test_a_drill_names_the_problem(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(MISMATCH) as api:
        assert main(["trigger", "mismatch", api, "--times", "2", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["answers"] == {"422 mismatch": 3}
    with serve(CREATED) as api:
        told(capsys, "trigger", "retry-storm", api, "--times", "2", code=0)
        told(capsys, "trigger", "mismatch", api, "--times", "2", code=1)
