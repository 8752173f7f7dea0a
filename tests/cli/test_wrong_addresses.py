"""Addresses that are taken, unknown or no HTTP: each is said in one line, with what to do, and is no traceback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from retrysafe.cli.main import main

APP = "import retrysafe\nsafe = retrysafe.RetrySafe('memory://')\n"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "shop_of_addresses.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return "shop_of_addresses:safe"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that is in use, by something that speaks no HTTP."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    with peer:
                        peer.sendall(b"-ERR unknown command\r\n\r\n")
                        peer.shutdown(socket.SHUT_WR)
                        while peer.recv(65536):
                            pass

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def test_a_health_address_that_is_taken(app: str, taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    """As a second worker on one machine meets it."""
    assert main(["worker", app, "--once", "--health", f"127.0.0.1:{taken}"]) == 2
    told = capsys.readouterr().err
    assert told == (
        f"retrysafe: --health '127.0.0.1:{taken}': Address already in use; give each worker of a machine an address "
        "of its own (port 0: a free one)\n"
    )


def test_a_health_address_of_an_unknown_host(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", app, "--once", "--health", "no-such-host.invalid:8081"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("retrysafe: --health 'no-such-host.invalid:8081': ")
    assert told.count("\n") == 1


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_a_health_address_of_ipv6(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 address of its own")
    assert main(["worker", app, "--once", "--health", "[::1]:0"]) == 0


@pytest.mark.parametrize("words", [("trigger", "retry-storm", "--times", "2"), ("trigger", "mismatch"), ("rollout",)])
def test_a_server_that_speaks_no_http(words: tuple[str, ...], taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, f"http://127.0.0.1:{taken}/pay"]) == 5
    assert "BadStatusLine" in "".join(capsys.readouterr())


@pytest.mark.parametrize("words", [("trigger", "retry-storm", "--times", "2"), ("rollout",)], ids=" ".join)
@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:99999/", "http://127.0.0.1:x/", "http://127.0.0.1:1/a b", "http://[::1/", "http:///x"]
)
def test_an_address_that_is_none(words: tuple[str, ...], address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, address]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"retrysafe: {address!r}: ")
    assert told.count("\n") == 1


def test_the_reason_why_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    assert main(["trigger", "retry-storm", f"http://127.0.0.1:{port}/pay", "--times", "2"]) == 5
    told = capsys.readouterr()
    assert "2 × URLError" in told.out
    assert told.err == f"retrysafe: http://127.0.0.1:{port}/pay did not answer: Connection refused\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--header", "name: \u2603"),
        ("--header", "name: a\nb"),
        ("--header", "na me: a"),
        ("--method", "PO ST"),
        ("--times", "0"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("verb", ["retry-storm", "mismatch"])
def test_what_no_request_can_have(verb: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trigger", verb, "http://127.0.0.1:1/pay", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"retrysafe: {words[0]} ")
    assert told.count("\n") == 1


def test_one_request_is_one_request(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    main(["trigger", "retry-storm", f"http://127.0.0.1:{taken}/pay", "--times", "1"])
    assert capsys.readouterr().out.startswith("1 request with key storm-")


def test_a_crash_is_left_in_a_store_and_not_at_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trigger", "crash", "http://127.0.0.1:8000/pay", "--because", "a test"])
    assert ended.value.code == 2
    assert "; an http:// address is no store: give one like sqlite:///app.db" in capsys.readouterr().err
