"""Print an older text with the names of today: a stack trace, a note, a branch's diff.

    python tools/old_names.py < trace.txt

`renames.tsv` has the names that were changed in one step before 0.2, `renames-2.tsv` those of the second step. A row
is `where<TAB>old<TAB>new`: a file below `src/retrysafe`, the old name in it and the new one. A row without an old name
moved the file.

In a stack trace the file tells which name is meant. Elsewhere a word is translated only if it looks like code
(`_in_it`, `CamelCase`, `called(`, `.attribute`, between backticks) and has one meaning in the whole table. Other words
stay as they are: `call` and `key` are English, too.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

TABLES = [Path(__file__).with_name(name) for name in ("renames.tsv", "renames-2.tsv")]
TRACE = re.compile(
    r'^(?P<before>.*\bFile ".*?)(?P<path>[\w/]+\.py)(?P<between>", line \d+, in )(?P<name>\w+)(?P<rest>.*)$'
)
PATH = re.compile(r"(?:\w+/)+\w+\.py")
CODE = re.compile(r"(?<=\.)\w+|\w+(?=\()|(?<=`)\w+(?=`)|\b\w*_\w*\b|\b[A-Z][a-z0-9]+(?:[A-Z]\w*)+\b")


class Step:
    """The names that were changed together."""

    def __init__(self, rows: Iterable[tuple[str, str, str]]) -> None:
        self.moves: dict[str, str] = {}
        self.by_file: dict[str, dict[str, str]] = defaultdict(dict)
        meanings: dict[str, set[str]] = defaultdict(set)
        for where, old, new in rows:
            if not old:
                self.moves[where] = new if "/" in new else "/".join([*where.split("/")[:-1], new])
                continue
            last = old.rpartition(".")[2]
            self.by_file[where][last] = new.rpartition(".")[2]
            meanings[last].add(new.rpartition(".")[2])
        self.anywhere = {old: new.pop() for old, new in meanings.items() if len(new) == 1}


def read_step(text: str) -> Step:
    return Step(_read_rows(text))


def _read_rows(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            where, old, new = (part.strip() for part in line.split("\t"))
            yield where, old, new


def translate(text: str, steps: Iterable[Step]) -> str:
    """The text with the names of today."""
    for step in steps:
        text = "\n".join(_translate_lines(text.split("\n"), step))
    return text


def _translate_lines(lines: Iterable[str], step: Step) -> Iterator[str]:
    here = ""
    for line in lines:
        found = TRACE.match(line)
        if found:
            here = _below_package(found["path"])
            name = step.by_file.get(here, {}).get(found["name"], found["name"])
            yield found["before"] + _move(found["path"], step) + found["between"] + name + found["rest"]
        else:
            yield _translate_words(line, step, step.by_file.get(here, {}) if line.startswith("    ") else {})


def _translate_words(line: str, step: Step, names: dict[str, str]) -> str:
    """`names`: those of the file that the stack trace has just named."""
    moved = PATH.sub(lambda path: _move(path[0], step), line)
    return CODE.sub(lambda word: names.get(word[0]) or step.anywhere.get(word[0], word[0]), moved)


def _below_package(path: str) -> str:
    return path.rpartition("retrysafe/")[2]


def _move(path: str, step: Step) -> str:
    below = _below_package(path)
    return path.removesuffix(below) + step.moves.get(below, below)


if __name__ == "__main__":
    sys.stdout.write(translate(sys.stdin.read(), [read_step(table.read_text()) for table in TABLES]))
