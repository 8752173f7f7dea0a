"""The tools that keep names, invariants and coverage: what they find, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import coverage_floor, fragments, invariants, old_names, rename

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
    problems = rename.check_rows(rows)
    assert len(problems) == 4
    for row, line in zip(rows, problems, strict=True):
        assert row.where in line


def test_a_module_gets_its_new_name_where_it_is_imported() -> None:
    source = "from retrysafe.web import load\nimport retrysafe.web.load\n'é'; load.run('load')\n"
    changed = rename.rename_imports(source, "retrysafe.web.load", "retrysafe.web.traffic")
    assert changed == "from retrysafe.web import traffic\nimport retrysafe.web.traffic\n'é'; traffic.run('load')\n"


OLD_NAMES = (
    "a/b.py\tEar.deaf\tclosed\na/b.py\tkey\tderive_key\nc.py\tof_it\tplan\nd.py\tof_it\tread\na/b.py\t\tpipe.py\n"
)
NEWER_NAMES = "a/pipe.py\tclosed\tis_closed\n"


def test_a_stack_trace_is_read_with_the_names_of_today() -> None:
    steps = [old_names.read_step(OLD_NAMES), old_names.read_step(NEWER_NAMES)]
    trace = '  File "/x/retrysafe/a/b.py", line 7, in deaf\n    self.deaf(key)\nKeyError: the key is gone, see `key`'
    assert old_names.translate(trace, steps) == (
        '  File "/x/retrysafe/a/pipe.py", line 7, in is_closed\n    self.is_closed(key)\n'
        "KeyError: the key is gone, see `derive_key`"
    )


def test_words_of_a_language_and_names_with_two_meanings_stay() -> None:
    step = old_names.read_step(OLD_NAMES)
    text = "Traceback (most recent call last): the key of_it"
    assert old_names.translate(text, [step]) == text


PAGE = "|---|---|---|\n| I1 | one grant | `tests/a.py::test_it` |\n| I2 | no test | later |\n"


def test_codes_and_page_must_agree(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text("def test_other(): ...\n")
    cited = [("src/x.py", "as I1 says\nand S9\npacked as '>I4'\n")]
    output = "\n".join(invariants.list_problems(PAGE, cited, tmp_path))
    assert "src/x.py:2 cites S9" in output
    assert "I1 names test_it" in output
    assert "I2 names no test" in output
    assert "I4" not in output
    (tmp_path / "tests" / "a.py").write_text("def test_it(): ...\n")
    whole = PAGE.replace("later", "`tests/a.py`")
    assert list(invariants.list_problems(whole, [("x", "I1, I2")], tmp_path)) == []


def test_coverage_is_added_up_per_package_and_held_against_its_floor() -> None:
    def summary(covered: int, total: int) -> dict[str, dict[str, int]]:
        lines = {"covered_lines": covered, "num_statements": total}
        return {"summary": {**lines, "covered_branches": 0, "num_branches": 2}}

    files = {
        "src/retrysafe/core/ops.py": summary(8, 8),
        "src/retrysafe/core/keys.py": summary(4, 8),
        "src/retrysafe/web/core/other.py": summary(0, 8),
    }
    figure = coverage_floor.measure(files, "core")
    assert figure == ("core", 12, 20)
    assert coverage_floor.list_problems([figure], {"core": 60}) == []
    assert coverage_floor.list_problems([figure], {"core": 61}) == ["core: 60.0 % is below its floor of 61 %"]
    assert coverage_floor.measure(files, "engine").percent == 0.0


def test_core_engine_and_web_have_floors() -> None:
    floors = coverage_floor.read_floors((coverage_floor.ROOT / "pyproject.toml").read_text())
    assert set(floors) == {"core", "engine", "web"}
    assert min(floors.values()) > 50


@pytest.mark.parametrize("arguments", [["--help"], [], ["0.2"], ["0.2.0", "--check"]])
def test_fragments_are_gathered_for_a_version_and_nothing_else(arguments: list[str]) -> None:
    before = sorted(fragments.FOLDER.iterdir())
    with pytest.raises(SystemExit, match="nothing was changed"):
        fragments.main(arguments)
    assert sorted(fragments.FOLDER.iterdir()) == before
