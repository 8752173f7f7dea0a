"""The program accepts every `retrysafe …` command that a page shows: its name, its options, their values."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from retrysafe.cli.main import build_parser, parse_words

ROOT = Path(__file__).parents[2]
HISTORY = ("docs/decisions/", "docs/explanation/what-broke.md")
"""These name commands of earlier times."""
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if not page.relative_to(ROOT).as_posix().startswith(HISTORY)
]
FENCE = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "console", "text", "bash", "yaml")
PLACEHOLDERS = {"N": "1", "SECONDS": "1", "TABLE": "keys"}
START = r"(?:(?:[A-Z_]+=\S+|\$|python -m|manage\.py|python manage\.py|flask) )*"
LINE = re.compile(rf"^ *{START}retrysafe ((?:[^\n#|>&]|(?<=\\)\n)+)", re.MULTILINE)
INLINE = re.compile(rf"`{START}retrysafe ([^`]+)`")


class Command(NamedTuple):
    page: str
    text: str


def list_commands() -> Iterator[Command]:
    for page in PAGES:
        text = page.read_text()
        name = str(page.relative_to(ROOT))
        found = [line for kind, block in FENCE.findall(text) if kind in SHELL for line in LINE.findall(block)]
        found += INLINE.findall(FENCE.sub("", text))
        yield from (Command(name, " ".join(each.replace("\\\n", " ").split())) for each in found)


COMMANDS = sorted(set(list_commands()))
PARSER = build_parser()


def is_a_mention(words: list[str]) -> bool:
    """`retrysafe keys resolve`: a name in a sentence, without what it needs."""
    return not any(word.startswith("-") or word.isupper() or ":" in word for word in words)


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 150


def find_complaint(words: list[str]) -> str:
    """What the program says about these words. It is empty if it would run them, or print a help."""
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            parse_words(PARSER, words)
    except SystemExit as end:
        return said.getvalue() if end.code else ""
    return ""


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: f"{one.page}: {one.text}")
def test_a_command_is_accepted(command: Command) -> None:
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(command.text)]
    if "…" in words:
        return
    complaint = find_complaint(words)
    assert complaint == "" or (re.search("(are|is) required", complaint) and is_a_mention(words))
