"""The commands of a simulation import what they are given. What cannot be imported is refused in words, not with a
traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrysafe.testing.simulation.__main__ import main as campaign
from retrysafe.testing.simulation.importing import import_named
from retrysafe.testing.simulation.replay import main as replay
from retrysafe.testing.simulation.shop import SHOP

SHOP_NAME = "retrysafe.testing.simulation.shop:SHOP"
REFUSED = {
    "__main__:deploy": "MODULE must be importable, and __main__ is another program here",
    "no.such.module:SCENARIO": "MODULE must be importable, and there is no module 'no'",
    "retrysafe.nowhere:SCENARIO": "MODULE must be importable, and there is no module 'retrysafe.nowhere'",
    "retrysafe.testing.simulation.shop:SHIP": "has no 'SHIP'",
    ":SCENARIO": "names no scenario: write MODULE:NAME",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_command_says_in_words_what_it_cannot_import(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    commands = (replay, [name, "--seed", "7"]), (campaign, [name, "--seeds", "1"]), (campaign, [name, "--story", "7"])
    for command, words in commands:
        with pytest.raises(SystemExit) as ended:
            command(words)
        assert ended.value.code == 2
        assert REFUSED[name] in " ".join(capsys.readouterr().err.split())


def test_what_is_no_scenario_is_refused_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        campaign(["retrysafe.testing.simulation.shop:deploy", "--seeds", "1"])
    assert "is no Scenario" in capsys.readouterr().err


def test_a_scenario_is_imported_by_its_name() -> None:
    assert import_named(SHOP_NAME) is SHOP
    assert import_named(SHOP_NAME.partition(":")[0], "SHOP") is SHOP


def test_a_module_that_imports_what_is_not_there_keeps_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_without_its_driver.py").write_text("import no_such_driver\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_driver"):
        import_named("shop_without_its_driver:SCENARIO")
