"""The invariants page and the codes in the source agree (`docs/reference/invariants.md`).

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
"""Not `'>I4'`: that is how a script packs a number."""

ROW = re.compile(r"^\| ([IS]\d+) \| (.+?) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`((?:tests|src)/[\w/]+\.py)(?:::(\w+))?`")


def read_rows(page: str) -> dict[str, str]:
    """Each code of the page with its column of tests."""
    return {code: tests for code, _, tests in ROW.findall(page)}


def find_codes(texts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Each cited code with the first place that cites it."""
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
    problems = list(list_problems(PAGE.read_text(), read_sources(), ROOT))
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
