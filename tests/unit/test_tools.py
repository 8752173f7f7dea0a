"""The tools that keep names and invariants: what they find, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import invariants, rename

SOURCE = """
LIMIT = 3

class Pipe:
    size: int = 0

    def __init__(self) -> None:
        self.open = True

    def told(self, é: str) -> str:
        return é
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [("LIMIT", 1), ("Pipe", 3), ("Pipe.size", 4), ("Pipe.open", 7), ("Pipe.told", 9), ("Pipe.told.é", 9)],
)
def test_a_definition_is_found_at_its_identifier(name: str, line: int) -> None:
    found = rename.find_definition(SOURCE, name)
    assert found is not None
    assert found[0] == line
    assert SOURCE.splitlines()[line][found[1] :].startswith(name.rpartition(".")[2])


def test_what_is_not_defined_is_not_found() -> None:
    assert rename.find_definition(SOURCE, "Pipe.closed") is None
    assert rename.find_definition(SOURCE, "Tube.size") is None


def test_a_table_that_cannot_be_applied_says_why() -> None:
    rows = [
        rename.Row("no_such_file.py", "a", "b"),
        rename.Row("policy.py", "NoSuchName", "b"),
        rename.Row("policy.py", "Policy", "not a name"),
        rename.Row("policy.py", "Policy.but", "replace"),
    ]
    told = rename.check_rows(rows)
    assert len(told) == 4
    for row, line in zip(rows, told, strict=True):
        assert row.where in line


def test_a_module_gets_its_new_name_where_it_is_imported() -> None:
    source = "from retrysafe.web import load\nimport retrysafe.web.load\n'é'; load.run('load')\n"
    changed = rename.rename_imports(source, "retrysafe.web.load", "retrysafe.web.traffic")
    assert changed == "from retrysafe.web import traffic\nimport retrysafe.web.traffic\n'é'; traffic.run('load')\n"


def test_an_old_text_is_read_with_the_names_of_today() -> None:
    rows = [rename.Row("a.py", "told", "format_it"), rename.Row("b.py", "of", "plan"), rename.Row("c.py", "of", "read")]
    assert rename.translate("in told, of x", rows) == "in format_it, of x", "a name with two meanings stays"


PAGE = "|---|---|---|\n| I1 | one grant | `tests/a.py::test_it` |\n| I2 | no test | later |\n"


def test_codes_and_page_must_agree(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text("def test_other(): ...\n")
    cited = [("src/x.py", "as I1 says\nand S9\npacked as '>I4'\n")]
    told = "\n".join(invariants.list_problems(PAGE, cited, tmp_path))
    assert "src/x.py:2 cites S9" in told
    assert "I1 names test_it" in told
    assert "I2 names no test" in told
    assert "I4" not in told
    (tmp_path / "tests" / "a.py").write_text("def test_it(): ...\n")
    whole = PAGE.replace("later", "`tests/a.py`")
    assert list(invariants.list_problems(whole, [("x", "I1, I2")], tmp_path)) == []
