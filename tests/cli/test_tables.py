"""Every command that prints rows prints a table on a terminal, with Rich and without it. In a pipe a row is a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.cli import reconcile
from retrysafe.cli.main import main
from tests.cli.test_json import BECAUSE, Charges, app, url
from tests.cli.test_output import Shown, on_terminal, strip_styles

__all__ = ["app", "on_terminal", "url"]

OF_A_STORE = {
    "keys list": ["id", "state", "kind", "scope", "key", "attempt", "created", "namespace"],
    "outbox list": ["id", "state", "namespace", "topic", "deliveries", "due", "error"],
    "dead-letters": ["what", "id", "name", "age", "why", "do"],
    "stats": ["kind", "target", "in", "progress", "lapsed", "uncertain", "oldest"],
    "doctor": ["setting", "value", "rule", "why"],
    "config": ["setting", "value", "source"],
}
BULK = {
    "keys release --all": ["id", "target", "key", "result"],
    "outbox retry --all": ["id", "topic", "result"],
    "outbox drop --all --yes": ["id", "topic", "result"],
}
OF_AN_APPLICATION = {
    "operations list": ["id", "state", "operation", "key", "point", "attempt", "note"],
    "operations declared": ["operation", "kind", "step", "more"],
}


def show(on_terminal: Shown, *words: str, code: int = 0) -> list[list[str]]:
    """The words of each line that a command prints on a terminal."""

    def run() -> None:
        assert main(words) == code

    return [line.split() for line in strip_styles(on_terminal(run)).splitlines()]


@pytest.mark.parametrize("command", OF_A_STORE)
def test_rows_of_a_store(command: str, url: str, on_terminal: Shown) -> None:
    assert OF_A_STORE[command] in show(on_terminal, *command.split(), url)


@pytest.mark.parametrize("command", BULK)
def test_results_of_a_bulk_command(command: str, url: str, on_terminal: Shown) -> None:
    first, *rows = show(on_terminal, *command.split(), url, *BECAUSE)
    assert first == BULK[command]
    assert len(rows) == 1


def test_topics(url: str, on_terminal: Shown) -> None:
    lines = show(on_terminal, "stats", url)
    assert lines[lines.index(["topic", "waiting", "oldest", "dead"]) + 1] == ["receipts", "0", "-", "1"]


def test_audit_rows(url: str, on_terminal: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "resolve", url, "lost", "--did-not-happen", *BECAUSE]) == 0
    assert show(on_terminal, "audit", url)[0] == ["at", "by", "action", "records", "outcome", "because"]


@pytest.mark.parametrize("command", OF_AN_APPLICATION)
def test_rows_of_an_application(command: str, app: tuple[RetrySafe, str], on_terminal: Shown) -> None:
    first, *rows = show(on_terminal, *command.split(), app[1])
    assert first == OF_AN_APPLICATION[command]
    assert len(rows) == {"operations list": 4, "operations declared": 1}[command]


def test_the_ledger_of_a_run(app: tuple[RetrySafe, str], on_terminal: Shown) -> None:
    lines = show(on_terminal, "operations", "show", app[1], "a")
    place = lines.index(["step", "state", "result", "error"])
    assert lines[place + 1][:3] == ["1", "charge", "begun"]


def test_differences(on_terminal: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "import_object", lambda text: Charges())
    lines = show(on_terminal, "reconcile", "shop:charges", code=1)
    assert lines[0] == ["what", "records"]
    assert ["what", "item"] in lines


PIPED: dict[str, Callable[[str], bool]] = {
    "list": lambda line: line.endswith(
        "  released   pay@1  a  at charge  attempt 1  stopped at 'charge' by StepFailed"
    ),
    "declared": lambda line: line == "  foreign  charge",
}


@pytest.mark.parametrize("verb", PIPED)
def test_in_a_pipe_a_row_is_a_line_as_before(
    verb: str, app: tuple[RetrySafe, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["operations", verb, app[1]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(map(PIPED[verb], lines)), lines


class Nasty:
    """Items of the other system, which its users may have named."""

    def ours(self) -> Any:
        return ["a\x1b[2J"]

    def theirs(self) -> Any:
        return []

    def key(self, item: str) -> str:
        return item


def test_an_item_of_the_other_system_moves_no_cursor(
    on_terminal: Shown, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reconcile, "import_object", lambda text: Nasty())
    assert ["ours,", "but", "not", "theirs", "a?[2J"] in show(on_terminal, "reconcile", "shop:nasty", code=1)
    assert main(["reconcile", "shop:nasty"]) == 1
    assert "  a?[2J\n" in capsys.readouterr().out
