"""Check that the invariants page (`docs/reference/invariants.md`) and the codes in the source agree.

    python -m tools.invariants --check

Source, tests and pages cite invariants as I1, I2 … and security controls as S1, S2 …. A code that is cited must be on
the page, and each row of the page must name a test that exists.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "invariants.md"
FOLDERS = ("src", "tests", "docs", "benchmarks", "tools")
SUFFIXES = (".py", ".md", ".sql", ".lua")
CODE = re.compile(r"(?<![\w>'<])([IS][1-9]\d?)(?![\w'])")
"""Without `'>I4'`, which is a format for packed numbers."""

ROW = re.compile(r"^\| ([IS]\d+) \| (.+?) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`((?:tests|src)/[\w/]+\.py)(?:::(\w+))?`")


RULE = re.compile(r"\brules? (\d+)(?:(?:,| and| to) (\d+))?(?! of\b)(?!\.)")
"""`rule 16`, `rules 13, 17`; not `rule 5 of flow.py`."""

RULE_ROW = re.compile(r"^\| rule (\d+) \|", re.MULTILINE)


def list_unknown_rules(page: str, texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Rules that are cited and are not on the page."""
    known = set(RULE_ROW.findall(page))
    for name, text in texts:
        for number, line in enumerate(text.splitlines(), 1):
            for cited in RULE.findall(line):
                for rule in filter(None, cited):
                    if rule not in known:
                        yield f"{name}:{number} cites rule {rule}, and {PAGE.name} has no such rule"


def read_rows(page: str) -> dict[str, str]:
    """Each code of the page, with the text of its tests column."""
    return {code: tests for code, _, tests in ROW.findall(page)}


def find_codes(texts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Each cited code, with the first line that cites it."""
    found: dict[str, str] = {}
    for name, text in texts:
        for number, line in enumerate(text.splitlines(), 1):
            for code in CODE.findall(line):
                found.setdefault(code, f"{name}:{number}")
    return found


def list_problems(page: str, texts: Iterable[tuple[str, str]], root: Path) -> Iterator[str]:
    rows = read_rows(page)
    for code, place in sorted(find_codes(texts).items()):
        if code not in rows:
            yield f"{place} cites {code}, and {PAGE.name} has no such row: add one, or cite another"
    for code, tests in rows.items():
        named = TEST.findall(tests)
        if not named:
            yield f"{code} names no test: write `tests/…/test_x.py::test_y` into its row"
        for file, function in named:
            path = root / file
            if not path.exists():
                yield f"{code} names {file}, which does not exist"
            elif function and not re.search(rf"^\s*(async )?def {function}\(", path.read_text(), re.MULTILINE):
                yield f"{code} names {function}, which is not in {file}"


def read_sources() -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path != PAGE and "__pycache__" not in path.parts:
                yield str(path.relative_to(ROOT)), path.read_text()


def main() -> int:
    sources = list(read_sources())
    page = PAGE.read_text()
    problems = [*list_problems(page, sources, ROOT), *list_unknown_rules(page, sources)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
