"""The receipt of an erasure says what is left, and what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retrysafe.cli.main import main
from retrysafe.core.ops import Lookup
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete

BECAUSE = ("--because", "request 4711")


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/app.db"
    assert main(["migrate", url]) == 0
    store = open_store(url)
    done = store.execute(claim("done", scope="acme", now=None))
    store.execute(complete(done, now=None))
    store.execute(claim("working", scope="acme", lease=3600, now=None))
    store.close()
    return url


def erase(url: str, capsys: pytest.CaptureFixture[str], *words: str, code: int) -> dict[str, object]:
    capsys.readouterr()
    assert main(["erase", url, "--scope", "acme", *BECAUSE, *words, "--json"]) == code
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_an_erasure_is_not_complete_while_records_are_left(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    counted = erase(url, capsys, code=1)
    assert (counted["complete"], counted["to_erase"], counted["unfinished"]) == (False, 1, 1)
    erased = erase(url, capsys, "--yes", code=1)
    assert (erased["complete"], erased["erased"], erased["unfinished"]) == (False, 1, 1)
    assert main(["audit", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["complete"] is False, "the audit row says the same"


def test_it_is_complete_when_nothing_is_left(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(url)
    working = store.execute(Lookup(claim("working", scope="acme").id)).record
    assert store.execute(complete(working, now=None))
    store.close()
    assert erase(url, capsys, code=0)["complete"] is False, "counted only: nothing was erased"
    assert erase(url, capsys, "--yes", code=0)["complete"] is True
    assert erase(url, capsys, code=0)["complete"] is True, "there is nothing to erase any more"


def test_the_receipt_names_everything_that_is_kept(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """S12: a plain fingerprint lets a reader of the store try short bodies."""
    assert "fingerprint" in str(erase(url, capsys, "--yes", code=1)["kept"])
    store = open_store(url)
    record = store.execute(Lookup(claim("done", scope="acme").id)).record
    store.close()
    assert record is not None
    assert (record.answer.body, record.input, record.progress, record.note) == (b"", b"", b"", "")
    assert record.fingerprint.digest, "if it is erased one day, the receipt and operate.md must not name it"


def test_one_record_is_not_records(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["erase", url, "--scope", "acme", *BECAUSE]) == 1
    assert "1 record was left; finish it and erase again" in capsys.readouterr().err
    store = open_store(url)
    store.execute(claim("working too", scope="acme", lease=3600, now=None))
    store.close()
    assert main(["erase", url, "--scope", "acme", *BECAUSE]) == 1
    assert "2 records were left; finish them and erase again" in capsys.readouterr().err


def test_a_receipt_for_people_has_no_python_in_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["erase", url, "--scope", "acme", *BECAUSE]) == 1
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (rows["complete"], rows["next"], rows["audit"]) == ("no", "-", "-")
    assert rows["unfinished_ids"] == claim("working", scope="acme").id.hex()
