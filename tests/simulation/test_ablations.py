"""A safeguard that is taken out is missed. A quick sample here; all of them, with 20,000 seeds, are a campaign."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.ablations import ABLATIONS, Ablation, find_seed, table
from tests.simulation.ablations.table import COMMIT, PAGE, UNFINISHED, format_what_broke, main, name_commits, read_rows

MAX_SEEDS = 150
"""Most of the ablations below are found within 12 seeds."""

QUICK = (
    "no lease",
    "completed runs again",
    "a completion replaces another",
    "a renewal brings back what was given up",
    "an own claim is not recognised",
    "a new token for each sending",
    "unclear is taken for nothing done",
    "a claim is cancelled with its caller",
    "a cancellation is swallowed",
    "in progress is answered before mismatch",
    "no fingerprint",
    "an escaped slash is a slash",
    "every redirect is withdrawn",
    "one key for all tenants",
    "what may not be repeated is repeated",
    "an unknown step is not undone",
    "undos in the order of their steps",
    "an ending that the body swallows is lost",
    "a wider input is another request",
    "receipts that nobody finds",
    "rows without their recovery point",
    "a job is published under a new id",
    "a job is deleted before it is published",
    "a job is staged outside its transaction",
    "a job without its fence",
    "a message known by its delivery",
    "events are kept for five minutes",
    "an event known by its time",
    "2xx while another handles it",
)


@pytest.mark.parametrize("ablation", [each for each in ABLATIONS if each.name in QUICK], ids=lambda each: each.name)
def test_a_safeguard_that_is_taken_out_is_missed(ablation: Ablation) -> None:
    assert find_seed(ablation, 0, MAX_SEEDS) is not None


@pytest.mark.campaign
@pytest.mark.parametrize("ablation", [each for each in ABLATIONS if each.name not in QUICK], ids=lambda each: each.name)
def test_a_safeguard_that_is_taken_out_is_missed_sooner_or_later(ablation: Ablation) -> None:
    assert find_seed(ablation, 0, 20_000) is not None


def test_the_published_table_has_every_ablation_and_no_survivor() -> None:
    page, remedy = PAGE.read_text("utf-8"), "python -m tests.simulation.ablations --missing"
    assert list(read_rows(page)) == [(each.name, each.rule) for each in ABLATIONS], remedy
    assert page.endswith(format_what_broke()), remedy
    assert "| **survived** |" not in page
    assert COMMIT.search(page), "the page says of which commit its figures are"


def test_a_page_that_gets_what_it_lacks_names_both_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "read_commit_id", lambda: "bbb")
    assert name_commits("") == "bbb"
    assert name_commits("of the code at\ncommit `aaa`.") == "aaa`, rows that were added later at `bbb"


def test_what_is_published_is_kept_and_what_is_missing_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "ablations.md"
    monkeypatch.setattr(table, "PAGE", page)
    rows = [f"| {each.name} | {each.rule} | 7 | 9 | general |" for each in ABLATIONS]
    gone = next(number for number, each in enumerate(ABLATIONS) if each.name == "completed runs again")
    head = "| ablation | rule | seeds |\n|---|---|---|\n"
    page.write_text(head + "\n".join(row for number, row in enumerate(rows) if number != gone))
    assert main(["--missing", "--runs", "1", "--max", "60"]) == 0
    written = list(read_rows(page.read_text()).values())
    assert written[:gone] + written[gone + 1 :] == rows[:gone] + rows[gone + 1 :]
    assert written[gone].startswith("| completed runs again | I5 write-once | ")
    assert page.read_text().endswith(format_what_broke())


def test_a_survivor_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """No seed at all is looked at, so nothing can be found."""
    assert main(["--only", "no lease", "--runs", "1", "--max", "0"]) == 1
    assert "survived: no lease" in capsys.readouterr().err


def test_what_is_finished_is_not_searched_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--only", "completed runs again", "--runs", "2", "--max", "60", "--notes", str(tmp_path / "notes.json")]
    assert main([*command, "--seconds", "-1"]) == UNFINISHED
    assert "1 of 1 are not finished" in capsys.readouterr().err
    assert main(command) == 0
    row = capsys.readouterr().out
    assert main([*command, "--seconds", "-1"]) == 0
    assert capsys.readouterr().out == row
    assert main([*command, "--max", "59", "--seconds", "-1"]) == UNFINISHED
    assert "it is begun anew" in capsys.readouterr().err


def test_what_is_found_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "completed runs again", "--runs", "2", "--max", "60"]) == 0
    assert "| completed runs again | I5 write-once |" in capsys.readouterr().out
