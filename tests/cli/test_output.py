"""Tables: on a terminal with Rich and without it, and piped. A stored text is data, neither markup nor control."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from retrysafe.cli.main import main
from retrysafe.cli.output import ProgressLine, print_table
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete

NASTY = "[bold red]k[/] \x1b[2J\x1b]0;owned\x07 \r\n\u202eabc :smile: [link=http://x]y[/link]"


Shown = Callable[[Callable[[], object]], str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=["rich", "plain"])
def on_terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Runs something with a terminal as standard output, with Rich and without it. Returns what it printed."""
    if request.param == "plain":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm-256color")

    def run(call: Callable[[], object]) -> str:
        with redirect_stdout(Terminal()) as terminal:
            call()
        return terminal.getvalue()

    return run


def test_a_table_has_its_columns_and_rows(on_terminal: Shown) -> None:
    shown = on_terminal(lambda: print_table(("id", "key"), [("1", "first"), ("22", "second")]))
    lines = [line.rstrip() for line in strip_styles(shown).splitlines()]
    assert [line.split() for line in lines] == [["id", "key"], ["1", "first"], ["22", "second"]]
    assert lines[1].index("first") == lines[2].index("second"), "the columns are aligned"


def test_what_is_copied_stays_in_one_line(on_terminal: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next command needs the id. On a narrow terminal the other columns are folded."""
    monkeypatch.setenv("COLUMNS", "80")
    columns = ("id", "state", "kind", "scope", "key", "attempt", "created", "namespace")
    when = "2026-11-18T03:06:26Z"
    row = ("795b259f4408", "uncertain", "http", "retrysafe-trigger", "crash-ff998df515422a7b", "#1", when, "default")
    shown = strip_styles(on_terminal(lambda: print_table(columns, [row])))
    assert "795b259f4408 " in shown, shown


def test_an_empty_table_prints_nothing(on_terminal: Shown) -> None:
    assert on_terminal(lambda: print_table(("id", "key"), [])) == ""


def test_a_text_on_a_terminal_is_neither_markup_nor_control(on_terminal: Shown) -> None:
    raw = on_terminal(lambda: print_table(("key",), [(NASTY,)]))
    shown = strip_styles(raw)
    assert "[bold red]k[/]" in shown
    assert "[link=http://x]y[/link]" in shown
    assert ":smile:" in shown
    assert all(each.isprintable() or each == "\n" for each in shown)


def test_a_text_in_a_pipe_cannot_break_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("key", "more"), [(NASTY, "x")], (4,))
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1
    assert all(each.isprintable() for each in shown.rstrip("\n"))


def test_the_commands_print_them(tmp_path: Path, on_terminal: Shown) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    store = open_store(url)
    store.migrate()
    store.execute(claim("[bold]7[/bold]", scope="ac[red]me", target="POST /\x1b[31mpay", lease=0, now=None))
    store.close()
    shown = strip_styles(on_terminal(lambda: [main(["keys", "list", url]), main(["stats", url])]))
    assert "[bold]7[/bold]" in shown
    assert "ac[red]me" in shown
    assert "POST /?[31mpay" in shown
    assert all(each.isprintable() or each == "\n" for each in shown)


ERASE = ("erase", "--because", "a test")
LONG = (ERASE, ("keys", "export"), ("keys", "list", "--limit", "20000"))


def make_store(tmp_path: Path, number: int, *, few: int = 0) -> str:
    """A store with so many completed records of the scope `acme`, and with so many of `few`."""
    url = f"sqlite:///{tmp_path}/app.db"
    store = open_store(url)
    store.migrate()
    scopes = ["acme"] * number + ["few"] * few
    made = store.execute_many([claim(f"k{n}", scope=scope, now=None) for n, scope in enumerate(scopes)])
    store.execute_many([complete(each, now=None) for each in made])
    store.close()
    return url


def read_progress(*words: str) -> list[int]:
    """The percentages that a command says on a terminal."""
    with redirect_stderr(Terminal()) as terminal:
        assert main(words) == 0
    lines = re.split("[\r\n]", terminal.getvalue())
    assert lines[-1] == "", "the line of progress is ended"
    return [int(found.group(1)) for line in lines if (found := re.search(r"records, about (\d+) % of the store", line))]


@pytest.mark.parametrize("words", [ERASE, ("keys", "export")], ids=" ".join)
def test_a_long_walk_says_how_far_it_is(tmp_path: Path, words: tuple[str, ...]) -> None:
    said = read_progress(*words, "--scope", "acme", make_store(tmp_path, 2_500))
    assert len(said) == 2
    assert all(abs(percent - expected) <= 5 for percent, expected in zip(said, (40, 80), strict=True)), said


@pytest.mark.parametrize("words", [ERASE, ("keys", "export")], ids=" ".join)
def test_a_walk_that_finds_little_says_it_too(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Three records of the scope fit one page, which was read to the end of the store without a word."""
    said = read_progress(*words, "--scope", "few", make_store(tmp_path, 5_000, few=3))
    assert len(said) == 2
    assert all(abs(percent - expected) <= 5 for percent, expected in zip(said, (40, 80), strict=True)), said


def test_a_list_that_finds_little_says_how_many_records_it_read(tmp_path: Path) -> None:
    url = make_store(tmp_path, 5_000, few=3)
    with redirect_stderr(Terminal()) as terminal:
        assert main(["keys", "list", "--scope", "few", url]) == 0
    assert terminal.getvalue().startswith("2,000 records\r4,000 records\r\n3 shown")


@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_a_log_gets_no_progress(tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    url = make_store(tmp_path, 5_000, few=3)
    assert main([*words, "--scope", "few", url]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if re.search(r"\d records(,|$)", line)] == []
    assert told[0].startswith("no index of sqlite has scopes: every record is read") or words[1] == "list"


def test_where_the_cursor_says_nothing_no_share_is_said() -> None:
    with redirect_stderr(Terminal()) as terminal:
        ProgressLine("records", 10).advance(10)
    assert terminal.getvalue() == "10 records\r"


def strip_styles(text: str) -> str:
    """Without what Rich itself adds for the bold heading."""
    for style in ("\x1b[1m", "\x1b[0m"):
        text = text.replace(style, "")
    return text
