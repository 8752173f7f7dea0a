"""Values that no store, clock, server or terminal takes: refused before anything is read, and printed harmlessly."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.cli.main import main
from retrysafe.core.jobs import FailJob, Job, Stage, TakeJobs
from retrysafe.core.ops import Lookup, Release, Resolve, Suspect
from retrysafe.core.times import SECOND_MICROS
from retrysafe.errors import UsageError
from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete
from tests.opening import store_url

NASTY = "k\x1b[2J\x1b]0;owned\x07\r\n\u202eabc\x9b31m"
BECAUSE = ("--because", "a test")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/app.db"


@pytest.fixture
def store(url: str) -> Any:
    store = open_store(url)
    store.migrate()
    yield store
    store.close()


NUMBERS = (
    ("keys", "resolve", "--all", "--did-not-happen", "--older-than", "nan", *BECAUSE),
    ("keys", "resolve", "--all", "--did-not-happen", "--older-than", "inf", *BECAUSE),
    ("keys", "resolve", "--all", "--did-not-happen", "--older-than", "-5", *BECAUSE),
    ("stats", "--examine", "1" + "0" * 30),
    ("keys", "list", "--limit", "1" + "0" * 30),
    ("top", "--every", "inf", "--times", "2"),
    ("tail", "--every", "1e12", "--times", "2"),
    ("trigger", "crash", "--lease", "1e30", *BECAUSE),
)


@pytest.mark.parametrize("words", NUMBERS, ids=" ".join)
def test_numbers(url: str, store: Store, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, url]) == 2
    assert "give " in capsys.readouterr().err


TEXTS = (
    ("keys", "show", "\udcff"),
    ("keys", "list", "--scope", "\udcff"),
    ("keys", "list", "--namespace", "\udcff"),
    ("keys", "resolve", "lost", "--did-not-happen", "--because", "\udcff"),
    ("keys", "resolve", "lost", "--did-not-happen", *BECAUSE, "--by", "\udcff"),
    ("erase", "--scope", "\udcff", *BECAUSE),
)


def test_a_demo_on_a_port_in_use(tmp_path: Path) -> None:
    """It is said before anything is begun: no process is started, and `--reset` deletes nothing."""
    kept = tmp_path / "demo-data" / "shop.db"
    kept.parent.mkdir()
    kept.touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["demo", "--reset", "--data", str(kept.parent), "--port", str(port)]
        done = subprocess.run(
            [sys.executable, "-m", "retrysafe", *words], capture_output=True, text=True, timeout=180, check=False
        )
    told = f"retrysafe: --port {port}: Address already in use; give another port\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
    assert [each.name for each in kept.parent.iterdir()] == ["shop.db"]
    assert kept.stat().st_size == 0


@pytest.mark.parametrize("words", [("operations", "list"), ("worker",)], ids=" ".join)
def test_a_url_is_no_application(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "postgresql://ann:secret@db/app"]) == 2
    told = capsys.readouterr().err
    assert "MODULE:NAME" in told
    assert "secret" not in told


@pytest.mark.parametrize("words", TEXTS, ids=lambda words: " ".join(words).encode("ascii", "replace").decode())
def test_texts(url: str, store: Store, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    store.execute(claim("lost", lease=0, now=None))
    assert main([*words, url]) == 2
    assert "UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--status", "99999"),
        ("--status", "0"),
        ("--content-type", "text/plain\r\nSet-Cookie: a=1"),
        ("--status", "101"),
    ],
    ids=lambda words: words[1].split("\r")[0],
)
def test_an_answer_that_no_server_can_send_is_not_stored(
    url: str, store: Store, tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer is stored once: a mistyped one would answer every retry for ever."""
    lost = store.execute(claim("lost", lease=0, now=None)).record
    body = tmp_path / "answer.json"
    body.write_text("{}")
    resolve = ["keys", "resolve", url, "lost", "--happened", "--answer", str(body), *BECAUSE]
    assert main([*resolve, *words]) == 2
    assert store.execute(Lookup(lost.id)).record.answer is None
    assert main([*resolve, "--status", "201"]) == 0


def test_the_same_from_python(url: str, store: Store) -> None:
    lost = store.execute(claim("lost", lease=0, now=None)).record
    with RetrySafe(url) as safe, pytest.raises(UsageError, match="status 99999"):
        safe.resolve(lost.id, happened=True, answer=Answer(99999, b"{}"), because="a test")


def fill_with_nasty(store: Store) -> None:
    store.execute(claim(NASTY, lease=0, now=None, target="POST /\x1b[31mpay", scope="sc\x1b[1m"))
    store.execute(claim(f"again {NASTY}", lease=0, on_lapse="rerun", now=None, target="POST /\x1b[31mpay"))
    assert store.execute(complete(store.execute(claim(f"done {NASTY}", now=None)), now=None))
    store.execute(Stage((Job("ab" * 16, "rec\x1b[2J", b"{}"), Job("cd" * 16, "x\x9b31m", b"{}")), None, "default"))
    store.execute(TakeJobs(1, b"t" * 16, SECOND_MICROS, None, "default"))
    store.execute(FailJob("ab" * 16, b"t" * 16, "no\x1b[2J", 0, True))


PRINTING = (
    ("keys", "list", "--json"),
    ("keys", "show", NASTY, "--json"),
    ("keys", "why", NASTY),
    ("keys", "resolve", "--all", "--did-not-happen", *BECAUSE),
    ("keys", "release", "--all", *BECAUSE),
    ("keys", "release", f"again {NASTY}", *BECAUSE),
    ("keys", "forget", f"done {NASTY}", *BECAUSE),
    ("keys", "resolve", NASTY, "--did-not-happen", *BECAUSE),
    ("keys", "resolve", NASTY[:-1], "--did-not-happen", *BECAUSE),
    ("keys", "export"),
    ("stats",),
    ("top", "--times", "1"),
    ("outbox", "list"),
    ("outbox", "drop", "--all", *BECAUSE),
    ("outbox", "retry", "abababab", *BECAUSE),
    ("dead-letters",),
    ("erase", "--scope", "sc\x1b[1m", *BECAUSE),
)


@pytest.mark.parametrize("words", PRINTING, ids=lambda words: " ".join(words[:2]))
def test_what_is_stored_moves_no_cursor(
    url: str, store: Store, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    fill_with_nasty(store)
    main([*words, url])
    shown = capsys.readouterr()
    assert {each for each in shown.out + shown.err if not each.isprintable()} <= {"\n"}
    if "--json" in words or "export" in words:
        assert NASTY in {json.loads(line)["key"] for line in shown.out.splitlines()}, "JSON has the key as it is"


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_key_that_the_terminal_cannot_show_is_resolved_and_shown(
    url: str, store: Store, encoding: str, as_json: bool
) -> None:
    key = "Zahlung-\u4e2d\u6587-\xfc"
    store.execute(claim(key, lease=0, now=None))
    words = ["keys", "resolve", url, key, "--did-not-happen", *BECAUSE, *(["--json"] if as_json else [])]
    done = subprocess.run(
        [sys.executable, "-m", "retrysafe", *words],
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    if as_json:
        assert json.loads(done.stdout)["key"] == key


# Which application -------------------------------------------------------------------------------


def test_a_key_is_looked_for_in_the_application_of_the_settings(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "No such key" would be read as "the payment never arrived"."""
    store.execute(claim("order-7", scope="acme", namespace="shop", lease=0, now=None))
    look = ["keys", "why", "order-7", "--scope", "acme"]
    assert main([*look, url]) == 3
    assert "'default'" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setenv("RETRYSAFE_NAMESPACE", "shop")
        assert main([*look, url]) == 0
        assert main([*look, url, "--namespace", "default"]) == 3, "an argument goes before the environment"
    (tmp_path / "shop_of_this_test.py").write_text(
        f"from retrysafe import RetrySafe\nsafe = RetrySafe({url!r}, namespace='shop')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main([*look, "--app", "shop_of_this_test:safe"]) == 0


# What is erased ----------------------------------------------------------------------------------

STORES = ("sqlite", "postgres", "redis", "mysql", "mongodb", "dynamodb", "duckdb")


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.store(each)) for each in STORES])
def test_erasing_takes_the_note_too(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    """A note may be an error's text, or a person's: it may name the customer. Only what the receipt names is kept."""
    url = store_url(request, tmp_path, name)
    store = open_store(url)
    store.migrate()
    released = store.execute(claim("released", scope="acme", now=None)).record
    assert store.execute(Release(released.id, released.fence, "ValueError: card of Jane Doe"))
    lost = store.execute(claim("lost", scope="acme", now=None)).record
    assert store.execute(Suspect(lost.id, lost.fence, "Jane Doe waits"))
    assert store.execute(Resolve(lost.id, lost.fence, Answer(201, b"Jane"), "Jane Doe called"))
    assert main(["erase", url, "--scope", "acme", *BECAUSE, "--yes"]) == 0
    for each in (released, lost):
        assert store.execute(Lookup(each.id)).record.note == ""
    store.close()


def test_an_export_says_what_it_could_not_read(
    url: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in ("one", "two"):
        assert store.execute(complete(store.execute(claim(key, now=None)), now=None))
    with closing(sqlite3.connect(tmp_path / "app.db")) as file, file:
        file.execute("UPDATE retrysafe_keys SET headers = 'not what we write' WHERE key = 'one'")
    assert main(["keys", "export", url]) == 1
    shown = capsys.readouterr()
    assert [json.loads(line)["key"] for line in shown.out.splitlines()] == ["two"]
    assert "1 record could not be read and is missing" in shown.err


# Out of reach ------------------------------------------------------------------------------------


@pytest.mark.store("postgres")
@pytest.mark.parametrize("words", [("keys", "list"), ("migrate",)], ids=" ".join)
def test_the_servers_reason_is_said_once(
    postgres_url: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped database name is not a server that is down."""
    before, _, _ = postgres_url.partition("?")
    url = before.rpartition("/")[0] + "/no_such_database?pool_timeout=2"
    assert main([*words, url]) == 5
    assert capsys.readouterr().err.count('database "no_such_database" does not exist') == 1


DASHED = (
    (("keys", "why", "-Vx3"), "-- -Vx3"),
    (("keys", "resolve", "-Vx3", "--did-not-happen", *BECAUSE), "-- -Vx3"),
    (("outbox", "retry", "-Vx3", *BECAUSE), "-- -Vx3"),
    (("keys", "why", "k", "--scope", "-Vx3"), "--scope=-Vx3"),
    (("erase", "--scope", "-Vx3", *BECAUSE), "--scope=-Vx3"),
)


@pytest.mark.parametrize(("words", "written"), DASHED, ids=str)
def test_a_value_that_begins_with_a_dash(
    url: str, store: Store, words: tuple[str, ...], written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A random key in base64 does now and then, and argparse takes it for an option. The error says how to write it."""
    with pytest.raises(SystemExit) as ended:
        main([*words, url])
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith(written)


def test_what_begins_with_a_dash_can_be_found(url: str, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.execute(claim("-Vx3", scope="-acme", lease=3600, now=None))
    assert main(["keys", "why", url, "--scope=-acme", "--", "-Vx3"]) == 0
    assert main(["erase", url, "--scope=-acme", *BECAUSE]) == 1
    told = capsys.readouterr().err
    assert "retrysafe keys list --scope=-acme" in told, "a command that can be copied"


def test_an_option_that_is_mistyped_is_no_value(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("keys", "list", "-x"), ("stats", "-x"), ("keys", "why", "k", "--scop=x")):
        with pytest.raises(SystemExit):
            main([*words, url])
        assert "after '--'" not in capsys.readouterr().err
