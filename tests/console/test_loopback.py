"""`retrysafe console`: on this machine only, with a link that works once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from retrysafe import RetrySafe
from retrysafe.cli.main import main
from retrysafe.console import ConsoleRequest
from retrysafe.console.access import Operator
from retrysafe.console.console import Console
from retrysafe.console.loopback import LoopbackApp, OneTimeLogin
from retrysafe.console.request_log import FILE_NAME, LogFile, SeenRequest
from retrysafe.testing.builders import claim
from tests.servers.ports import free_port

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "cli.schema.json"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The command, as it is started in a shell."""
    url = f"sqlite:///{tmp_path}/app.db"
    with RetrySafe(url) as safe:
        safe.migrate()
        safe.store.execute(claim("order-7", now=1))
    command = [sys.executable, "-m", "retrysafe", "console", url, "--port", "0", "--json", "--by", "ann"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()  # not SIGINT: where the tests run in the background, it is ignored
            process.wait(30)


def test_the_link_works_once(served: dict[str, Any]) -> None:
    jsonschema.validate(served, json.loads(SCHEMA.read_text())["commands"]["console"])
    with httpx.Client(follow_redirects=True) as client:
        outside = client.get(f"{served['address']}/keys")
        assert (outside.status_code, "link that the command printed" in outside.text) == (401, True)
        page = client.get(served["link"])
        assert (page.status_code, "ann · default · read-only" in page.text) == (200, True)
        assert "order-7" in client.get(f"{served['address']}/keys").text
        again = httpx.get(served["link"])
        assert (again.status_code, "used already" in again.text) == (403, True)
        other = client.get(f"{served['address']}/", headers={"host": "evil.test"})
        assert other.status_code == 403, "DNS rebinding"
        assert client.post(f"{served['address']}/bulk").status_code == 403, "read-only"


def test_requests_are_shown_although_the_console_was_started_first(served: dict[str, Any], tmp_path: Path) -> None:
    """The file was looked for once, at the start: a developer who started the console first saw no page for it."""
    with httpx.Client(follow_redirects=True) as client:
        page = client.get(served["link"])
        assert 'href="/requests"' in page.text
        assert "No request was seen yet" in client.get(f"{served['address']}/requests").text
        log = LogFile(tmp_path / FILE_NAME)
        log.append(SeenRequest(1.0, "POST", "/pay", "order-7", 200, False, "", {}))
        assert "POST /pay" in client.get(f"{served['address']}/requests").text


def test_a_port_that_is_taken_is_said(served: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    port = served["address"].rpartition(":")[2]
    assert main(["console", "memory://", "--port", port]) == 2
    assert f"--port {port}" in capsys.readouterr().err


def test_a_wrong_token_starts_no_session() -> None:
    with RetrySafe("memory://") as safe:
        login = OneTimeLogin(Operator("ann"))
        app = LoopbackApp(Console(safe, authenticate=login.authenticate), login)
        token = login.new_token()
        for wrong in ("", "x", token[:-1], f"{token}x"):
            response = app.handle(ConsoleRequest("GET", "/login", f"token={wrong}", {"host": "127.0.0.1:1"}))
            assert (response.status, response.header("set-cookie")) == (403, "")
        found = app.handle(ConsoleRequest("GET", "/login", f"token={token}", {"host": "localhost:1"}))
        assert found.status == 303
        assert "HttpOnly; SameSite=Strict" in found.header("set-cookie")


@pytest.mark.parametrize("host", ["", "[", "[::1", "127.0.0.1:x", "evil.test", "127.0.0.1.evil.test", "a@evil.test"])
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    with RetrySafe("memory://") as safe:
        login = OneTimeLogin(Operator("ann"))
        app = LoopbackApp(Console(safe, authenticate=login.authenticate), login)
        token = login.new_token()
        for path in ("/", "/login", "/keys"):
            response = app.handle(ConsoleRequest("GET", path, f"token={token}", {"host": host}))
            assert (response.status, response.header("x-frame-options")) == (403, "DENY")
        assert app.handle(ConsoleRequest("GET", "/login", f"token={token}", {"host": "localhost:1"})).status == 303


def test_one_link_opens_one_browser_and_one_console() -> None:
    """Cookies do not know ports: a second console on this machine ended the session of the first."""
    with RetrySafe("memory://") as safe:
        jar: dict[str, str] = {}
        apps = []
        for port in (1, 2):
            login = OneTimeLogin(Operator("ann"))
            app = LoopbackApp(Console(safe, authenticate=login.authenticate), login)
            token = login.new_token()
            many = "&".join(f"a{n}=1" for n in range(2_001))
            host = {"host": f"127.0.0.1:{port}"}
            assert app.handle(ConsoleRequest("GET", "/login", many, host)).status == 400
            answers = [app.handle(ConsoleRequest("GET", "/login", f"token={token}", host)) for _ in range(2)]
            assert [each.status for each in answers] == [303, 403], "the second browser"
            name, _, value = answers[0].header("set-cookie").partition(";")[0].partition("=")
            jar[name] = value
            apps.append((app, host))
        cookie = "; ".join(f"{name}={value}" for name, value in jar.items())
        for app, host in apps:
            assert app.handle(ConsoleRequest("GET", "/", "", {**host, "cookie": cookie})).status == 200


@pytest.mark.parametrize(
    "words", [["--port", "70000"], ["sqlite:///nowhere/none.db"], ["--trace-url", "x", "memory://"]]
)
def test_what_cannot_be_served_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", *words]) != 0
    assert "retrysafe: " in capsys.readouterr().err


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:{port}/shop", "redis://127.0.0.1:{port}/0"])
def test_a_store_that_does_not_answer_is_said_at_the_start(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The link was printed, and every page behind it answered 503: a newcomer looked there for a wrong port."""
    assert main(["console", url.format(port=free_port()), "--port", "0"]) == 5
    told = capsys.readouterr()
    assert (told.out, "retrysafe: " in told.err) == ("", True)


def test_a_database_without_tables_is_said_at_the_start(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", f"{postgres_url}?table=not_there", "--port", "0"]) == 5
    assert "retrysafe migrate" in capsys.readouterr().err


def test_without_jinja_it_says_which_extra(tmp_path: Path) -> None:
    script = "import sys; sys.modules['jinja2'] = None; from retrysafe.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, "console", "memory://"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "retrysafe.console needs the module 'jinja2'" in done.stderr
    assert "retrysafe[console]" in done.stderr
