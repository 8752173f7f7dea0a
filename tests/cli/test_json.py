"""Every command has a schema in docs/reference/cli.schema.json, and prints what it says."""

from __future__ import annotations

import argparse
import ast
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import BaseServer
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.cli import import_object, key_actions, operations, reconcile, tail, worker
from retrysafe.cli.main import build_parser, main
from retrysafe.core.jobs import FailJob, Job, Stage, TakeJobs
from retrysafe.core.times import SECOND_MICROS
from retrysafe.errors import NotFinished
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete
from retrysafe.web.key_usage import KeyUsageStats

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/reference/cli.schema.json").read_text())
WITHOUT_JSON = {"demo", "completion"}
DEAD = Job("ab" * 16, "receipts", b'{"order": 7}')
BECAUSE = ("--because", "a test")


def list_commands(parser: argparse.ArgumentParser, path: str = "") -> dict[str, argparse.ArgumentParser]:
    children = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not children:
        return {path: parser}
    found: dict[str, argparse.ArgumentParser] = {}
    for name, child in children[0].choices.items():
        found |= list_commands(child, f"{path} {name}".strip())
    return found


def test_every_command_has_json_a_schema_and_examples() -> None:
    commands = list_commands(build_parser())
    assert commands.keys() - WITHOUT_JSON == SCHEMA["commands"].keys()
    for name, parser in commands.items():
        if name not in WITHOUT_JSON | {"keys export"}:  # an export is JSON in any case
            assert "--json" in parser._option_string_actions, name
        assert "examples:" in parser.format_help(), name


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with something of everything."""
    url = f"sqlite:///{tmp_path}/app.db"
    store = open_store(url)
    store.migrate()
    store.execute(claim("lost", lease=0, now=None))
    store.execute(claim("stuck", lease=0, on_lapse="rerun", now=None))
    store.execute(claim("alive", lease=3600, now=None))
    assert store.execute(complete(store.execute(claim("done", scope="acme", now=None)), now=None))
    store.execute(Stage((DEAD,), None, "default"))
    store.execute(TakeJobs(1, b"t" * 16, SECOND_MICROS, None, "default"))
    store.execute(FailJob(DEAD.id, b"t" * 16, "no", 0, True))
    store.close()
    return url


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[Any]]:
    """Run a command with --json, and compare each line with its schema."""

    def run(command: str, *words: str, code: int = 0, lines: int | None = None) -> list[Any]:
        extra = () if command == "keys export" else ("--json",)
        assert main([*command.split(), *words, *extra]) == code
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert found if lines is None else len(found) == lines
        for each in found:
            jsonschema.validate(each, {"$defs": SCHEMA["$defs"], **SCHEMA["commands"][command]})
        return found

    return run


LISTED = ("keys list", "keys export", "outbox list", "dead-letters", "stats", "reap")


@pytest.mark.parametrize("command", LISTED)
def test_lists(url: str, check: Callable[..., list[Any]], command: str) -> None:
    check(command, url)


def test_stats_count(url: str, check: Callable[..., list[Any]]) -> None:
    (found,) = check("stats", url, "--count")
    assert (found["uncertain"], found["in_progress"], found["lapsed"]) == (1, 2, 1)
    assert (found["records"]["completed"], found["outbox"]["dead"]) == (1, 1)


def test_one_key(url: str, check: Callable[..., list[Any]]) -> None:
    (shown,) = check("keys show", url, "done", "--scope", "acme", "--body")
    assert shown["body"] == "done"
    (why,) = check("keys why", url, "lost")
    assert (why["shown_state"], why["actions"]) == ("uncertain", ["keys resolve"])


def test_actions_on_keys(url: str, check: Callable[..., list[Any]]) -> None:
    check("keys resolve", url, "lost", "--did-not-happen", *BECAUSE)
    check("keys release", url, "stuck", *BECAUSE)
    check("keys release", url, "alive", *BECAUSE, code=1, lines=0)
    check("keys forget", url, "done", "--scope", "acme", *BECAUSE)
    check("audit", url, lines=3)
    check("erase", url, "--scope", "acme", *BECAUSE)
    check("erase", url, "--scope", "acme", *BECAUSE, "--yes")
    check("reap", url, *BECAUSE, "--yes")
    check("trigger crash", url, *BECAUSE)
    check("top", url, "--times", "1")
    check("tail", url, "--times", "1", lines=0)


def test_tail(url: str, check: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks a key is claimed and another is resolved."""

    def happen(seconds: float) -> None:
        store = open_store(url)
        store.execute(claim("fresh", lease=3600, now=None))
        store.close()
        assert main(["keys", "resolve", url, "lost", "--did-not-happen", *BECAUSE]) == 0

    monkeypatch.setattr(tail, "time", SimpleNamespace(sleep=happen))
    monkeypatch.setattr(key_actions, "print_line", lambda text: None)
    found = check("tail", url, "--times", "2")
    assert {each["event"] for each in found} == {"claimed", "released"}


def test_the_worker(url: str, check: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "load_safe", lambda text: RetrySafe(url))
    (report,) = check("worker", "shop:safe", "--once")
    assert report["sweeper"] == 1


def test_the_worker_finds_its_application_in_the_settings(
    url: str, check: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `operations` does, and as `config` shows it."""
    named: list[str] = []

    def load(text: str) -> RetrySafe:
        named.append(text)
        return RetrySafe(url)

    monkeypatch.setattr(import_object, "load_safe", load)
    monkeypatch.setattr(worker, "load_safe", load)
    monkeypatch.delenv("RETRYSAFE_APP", raising=False)
    assert main(["worker", "--once"]) == 2
    assert "RETRYSAFE_APP" in capsys.readouterr().err
    monkeypatch.setenv("RETRYSAFE_APP", "shop:safe")
    check("worker", "--once")
    check("worker", "other:safe", "--once")
    check("worker", "--app", "third:safe", "--once")
    assert named == ["shop:safe", "other:safe", "third:safe"]


class Charges:
    """What a reconciliation compares; one is missing on the other side."""

    def ours(self) -> list[str]:
        return ["ch_1", "ch_2"]

    def theirs(self) -> list[str]:
        return ["ch_1"]

    def key(self, item: str) -> str:
        return item


def test_reconcile(check: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "import_object", lambda text: Charges())
    (found,) = check("reconcile", "shop:charges", code=1)
    assert found["missing_there"] == ["ch_2"]


def test_console(url: str, check: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints its link and then serves; here it ends at once."""
    monkeypatch.setattr(BaseServer, "serve_forever", lambda server, poll_interval: None)
    (found,) = check("console", url, "--port", "0")
    assert found["link"].startswith(found["address"])


def test_every_command_of_the_schema_is_checked_with_something_printed() -> None:
    """A schema that nothing is compared with says nothing."""
    tree = ast.parse(Path(__file__).read_text())
    checked = {
        word.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check"
        if not any(each.arg == "lines" and ast.unparse(each.value) == "0" for each in call.keywords)
        for word in call.args[:1]
        if isinstance(word, ast.Constant)
    }
    assert SCHEMA["commands"].keys() - checked - set(LISTED) == set()


def test_bulk(url: str, check: Callable[..., list[Any]]) -> None:
    words = ("--all", "--did-not-happen", *BECAUSE)
    assert check("keys resolve", url, *words)[0]["result"] == "would change"
    assert check("keys resolve", url, *words, "--yes")[0]["result"] == "changed"
    check("keys resolve", url, *words, "--yes", lines=0)


def test_outbox(url: str, check: Callable[..., list[Any]]) -> None:
    assert check("outbox retry", url, "--all", *BECAUSE)[0]["result"] == "would change"
    check("outbox revive", url, DEAD.id, *BECAUSE)
    check("outbox retry", url, DEAD.id, *BECAUSE, code=3, lines=0)
    check("outbox drop", url, DEAD.id, "--waiting", *BECAUSE)
    check("outbox assign", url, "--namespace", "default", *BECAUSE)
    check("outbox assign", url, "--namespace", "default", *BECAUSE, "--yes")


def test_settings(url: str, check: Callable[..., list[Any]], tmp_path: Path) -> None:
    check("migrate", url)
    check("doctor", url)
    check("config", url)


def test_rollout(check: Callable[..., list[Any]], tmp_path: Path) -> None:
    census = KeyUsageStats()
    for client, sent in (("a", "keyed"), ("b", "missing"), ("b", "missing")):
        census.count("POST /pay", client, sent)  # type: ignore[arg-type]
    census.count("POST /ship", "a", "keyed")
    census.write(tmp_path / "one.json")
    census.write(tmp_path / "two.json")
    both = (str(tmp_path / "one.json"), str(tmp_path / "two.json"))
    pay, ship = check("rollout", *both, code=1)
    assert (pay["requests"], pay["counts"], pay["verdict"]) == (6, {"keyed": 2, "missing": 4}, "not yet: missing")
    assert ship["verdict"] == "ready for required"
    check("rollout", *both, "--route", "POST /ship")
    assert len(check("rollout", *both, "--clients", code=1)) == 3
    check("rollout", *both, "--route", "nowhere", code=3, lines=0)
    (tmp_path / "bad.json").write_text("[]")
    check("rollout", str(tmp_path / "bad.json"), code=2, lines=0)
    check("rollout", str(tmp_path / "none.json"), code=3, lines=0)


def test_rollout_counts_its_rows_and_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    census = KeyUsageStats()
    census.count("POST /pay", "a", "keyed")
    census.write(tmp_path / "one.json")
    one = str(tmp_path / "one.json")
    assert main(["rollout", one]) == 0
    assert "1 row from 1 source\n" in capsys.readouterr().err
    assert main(["rollout", one, one]) == 0
    assert "1 row from 2 sources\n" in capsys.readouterr().err


class Shop(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(201)
        self.send_header("idempotent-replayed", "true")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def shop() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Shop)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/pay"
    server.shutdown()
    thread.join()
    server.server_close()


def test_triggers(shop: str, check: Callable[..., list[Any]]) -> None:
    (storm,) = check("trigger retry-storm", shop, "--times", "5", "--at-once", "2")
    assert storm["answers"] == {"201 replayed": 5}
    check("trigger mismatch", shop, "--times", "2", code=1)  # this shop takes every body
    check("trigger mismatch", "http://127.0.0.1:1/pay", code=5)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RetrySafe, str]]:
    with RetrySafe(f"sqlite:///{tmp_path}/runs.db") as safe:
        safe.migrate()
        pay, ready = safe.operation("pay"), []

        @pay.foreign(timeout=5)
        def charge(who: str, *, key: str) -> str:
            if not ready:
                raise RuntimeError("not yet")
            return who

        @pay.body
        def body(who: str) -> Answer:
            return Answer(200, charge(who))

        for key in ("a", "b", "c", "d"):
            with pytest.raises(NotFinished):
                pay("ada", key=key)
        ready.append(1)
        monkeypatch.setattr(operations, "load_safe", lambda text: safe)
        monkeypatch.setattr(import_object, "load_safe", lambda text: safe)
        close = safe.close
        monkeypatch.setattr(safe, "close", lambda: None)
        yield safe, "shop:safe"
        monkeypatch.setattr(safe, "close", close)


def test_operations(app: tuple[RetrySafe, str], check: Callable[..., list[Any]]) -> None:
    _, name = app
    check("operations declared", name)
    check("operations diagram", name)
    check("operations list", name, lines=4)
    check("operations show", name, "a")
    check("operations resume", name, "a", code=2, lines=0)
    check("operations resume", name, "a", *BECAUSE)
    check("operations undo", name, "a", *BECAUSE, code=1, lines=0)
    check("operations cancel", name, "b", *BECAUSE, code=1, lines=0)
    (cancelled,) = check("operations cancel", name, "b", *BECAUSE, "--leave-effects")
    assert cancelled["status"] == 409
    check("operations undo", name, "c", *BECAUSE, code=1, lines=0)
    (undone,) = check("operations undo", name, "c", *BECAUSE, "--leave-effects")
    assert undone["kept"] == ["charge"]
    check("operations show", name, "nobody", code=3, lines=0)
    check("audit", "--app", name, lines=3)


def test_the_old_spelling_of_operations_goes_on(app: tuple[RetrySafe, str], capsys: pytest.CaptureFixture[str]) -> None:
    _, name = app
    assert main(["operations", name, "--list"]) == 0
    assert "is now `operations list MODULE:SAFE`" in capsys.readouterr().err
    assert main(["operations", name]) == 0
    assert "pay@1" in capsys.readouterr().out
    assert main(["operations", name, "--resume", "d", "--because", "x"]) == 0
    assert main(["operations", name, "--undo", "d", "--because", "x"]) == 1, "it is finished: nothing is undone"
    assert "finished with 200" in capsys.readouterr().err
