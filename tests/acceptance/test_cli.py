"""The installed command, as a process: what works, and what is refused with a message that helps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrysafe import RetrySafe
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim
from tests.opening import store_url

COMMAND = [str(Path(sys.executable).with_name("retrysafe"))]
STORES = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres", "redis", "mysql")]


def retrysafe(*arguments: str, code: int = 0) -> tuple[str, str]:
    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path, request.param)


def test_migrate_list_and_show(url: str) -> None:
    assert "is up to date" in retrysafe("migrate", url)[0]
    assert "applied" not in retrysafe("migrate", url)[0], "the second time there is nothing to do"
    with RetrySafe(url) as safe:

        @safe.once("receipt:{order}")
        def send(order: int) -> str:
            return f"sent {order}"

        for order in range(3):
            send(order)

    out, err = retrysafe("keys", "list", url, "--count")
    assert out.count("completed") == 3
    assert "3 shown; in all 0 claimed (0 lapsed), 0 released, 3 completed (0 expired), 0 uncertain" in err
    assert retrysafe("keys", "list", url, "--state", "claimed")[0] == ""
    rows = [json.loads(line) for line in retrysafe("keys", "list", url, "--json", "--limit", "2")[0].splitlines()]
    assert len(rows) == 2
    shown = json.loads(retrysafe("keys", "show", url, "receipt:{1}", "--body", "--json")[0])
    assert (shown["state"], shown["body"], shown["expires"]) == ("completed", '"sent 1"', "never")
    assert "receipt:{2}" in retrysafe("keys", "show", url, "receipt:{2}")[0]
    assert shown["id"] in retrysafe("keys", "show", url, shown["id"][:12])[0]
    assert "keys list" in retrysafe("keys", "show", url, "no-such-key", code=3)[1]


@pytest.mark.store("postgres")
def test_without_tables_it_says_how_to_make_them(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = store_url(request, tmp_path, "postgres")
    assert f"retrysafe migrate {url}" in retrysafe("keys", "list", url, code=5)[1]


def test_the_schema_can_be_printed_without_a_server() -> None:
    for url in ("sqlite:///x.db", "postgresql://nobody@127.0.0.1:1/none?table=other"):
        out, _ = retrysafe("migrate", url, "--sql")
        assert "CREATE TABLE" in out
    assert '"other_keys"' in out


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["migrate", "mysqlx://h/db"], 2, "no store answers to 'mysqlx'"),
        (["migrate", "just-a-word"], 2, "is not a store URL"),
        (["migrate", "sqlite:///"], 2, "names no file"),
        (["migrate", "sqlite:///x.db?table=drop;--"], 2, "cannot be a table name"),
        (["migrate", "sqlite:///x.db?timeout=soon"], 2, "is not a number above zero"),
        (["keys", "list", "memory://", "--limit", "0"], 2, "give 1 or more"),
        (["demo", "--port", "99999"], 2, "from 1 to 65535"),
        (["keys", "list", "sqlite:////proc/none/x.db"], 5, "/proc/none"),
        (["nonsense"], 2, "invalid choice"),
        (["--nonsense"], 2, "COMMAND"),
    ],
)
def test_bad_input_is_refused_with_the_value_and_the_fix(arguments: list[str], code: int, told: str) -> None:
    assert told in retrysafe(*arguments, code=code)[1]


def test_a_server_that_is_away_is_reported_without_its_password() -> None:
    _, err = retrysafe("keys", "list", "postgresql://u:hunter2@127.0.0.1:1/db?pool_timeout=1", code=5)
    assert "hunter2" not in err
    assert "no connection to PostgreSQL" in err


def test_version_and_help() -> None:
    assert retrysafe("--version")[0].startswith("retrysafe ")
    assert "migrate" in retrysafe("--help")[0]


def test_a_person_resolves_a_lapsed_key(url: str, tmp_path: Path) -> None:
    retrysafe("migrate", url)
    store = open_store(url)
    for key in ("yes", "no", "living"):
        assert store.execute(claim(key, lease=3600 if key == "living" else 0, now=None)).granted
    store.close()
    shown = retrysafe("keys", "list", url, "--state", "uncertain")[0]
    assert "yes" in shown, "what lapsed is uncertain for whoever looks"
    assert "living" not in shown
    answer = tmp_path / "answer.json"
    answer.write_text('{"id": 7}')
    how = ("--happened", "--status", "201", "--answer", str(answer), "--because", "charge 7")
    assert "completed" in retrysafe("keys", "resolve", url, "yes", *how)[0]
    assert '{"id": 7}' in retrysafe("keys", "show", url, "yes", "--body")[0]
    assert "because" in retrysafe("keys", "resolve", url, "no", "--did-not-happen", code=2)[1]
    why = ("--did-not-happen", "--because", "not in their list")
    assert "released" in retrysafe("keys", "resolve", url, "no", *why)[0]
    assert "is claimed in attempt 1" in retrysafe("keys", "resolve", url, "living", *why, code=1)[1]
    told = retrysafe("keys", "resolve", url, "yes", *why, code=1)[1]
    assert "is completed in attempt 1" in told
    assert (
        "names 0 keys"
        in retrysafe("keys", "resolve", url, "no", "--happened", "--namespace", "other", *why[1:], code=3)[1]
    )
