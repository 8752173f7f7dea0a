"""A file that is not the store: the application's own database beside it, a folder, an empty file. A command that looks
or acts says so, and leaves it as it is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retrysafe import RetrySafe
from retrysafe.cli.main import main

BECAUSE = ("--because", "a test")
COMMANDS = (
    ("stats",),
    ("keys", "list"),
    ("keys", "why", "order-7"),
    ("keys", "resolve", "order-7", "--did-not-happen", *BECAUSE),
    ("outbox", "list"),
    ("erase", "--scope", "ann", *BECAUSE, "--yes"),
    ("reap", *BECAUSE, "--yes"),
    ("audit",),
    ("doctor",),
    ("tail", "--times", "1"),
    ("trigger", "crash", *BECAUSE),
    ("console", "--port", "0"),
)


def make_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        theirs.commit()


def read_folder(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_database_of_the_application_is_no_store(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Zeros of a database that is not the store would look like good news, and our tables do not belong into it."""
    make_database(tmp_path / "shop.db")
    before = read_folder(tmp_path)
    url = f"sqlite:///{tmp_path}/shop.db"
    assert main([*words, url]) == 5
    told = capsys.readouterr()
    assert f"retrysafe: {tmp_path}/shop.db has no tables of retrysafe" in told.err
    assert f"hint: check the path and ?table=, or create the store in it: retrysafe migrate {url}\n" in told.err
    assert told.out == ""
    assert read_folder(tmp_path) == before


def test_another_prefix_is_another_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RetrySafe(f"sqlite:///{tmp_path}/app.db?table=shop").migrate()
    assert main(["stats", f"sqlite:///{tmp_path}/app.db"]) == 5
    assert "app.db has no tables of retrysafe (retrysafe_…)" in capsys.readouterr().err
    assert main(["stats", f"sqlite:///{tmp_path}/app.db?table=shop"]) == 0


def test_an_empty_file_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "app.db").touch()
    assert main(["stats", f"sqlite:///{tmp_path}/app.db"]) == 5
    assert "app.db has no tables of retrysafe" in capsys.readouterr().err
    assert read_folder(tmp_path) == {"app.db": b""}
    assert main(["migrate", f"sqlite:///{tmp_path}/app.db"]) == 0
    assert main(["stats", f"sqlite:///{tmp_path}/app.db"]) == 0


def test_a_store_whose_keys_are_lost_is_still_told_as_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    assert main(["migrate", url]) == 0
    with closing(sqlite3.connect(tmp_path / "app.db")) as theirs:
        theirs.execute("DROP TABLE retrysafe_keys")
        theirs.commit()
    assert main(["stats", url]) == 5
    told = capsys.readouterr().err
    assert "has no tables of retrysafe" not in told
    assert "retrysafe_keys" in told


def test_a_duckdb_file_of_somebody_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    duckdb = pytest.importorskip("duckdb")
    with closing(duckdb.connect(str(tmp_path / "lake.duckdb"))) as theirs:
        theirs.execute("CREATE TABLE orders (id INTEGER)")
    before = read_folder(tmp_path)
    assert main(["stats", f"duckdb:///{tmp_path}/lake.duckdb"]) == 5
    assert "lake.duckdb has no tables of retrysafe" in capsys.readouterr().err
    assert read_folder(tmp_path) == before
    assert main(["migrate", f"duckdb:///{tmp_path}/lake.duckdb"]) == 0
    assert main(["stats", f"duckdb:///{tmp_path}/lake.duckdb"]) == 0


def test_a_folder_is_named_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "app.db").mkdir()
    assert main(["stats", f"sqlite:///{tmp_path}/app.db"]) == 5
    told = capsys.readouterr().err
    assert f"retrysafe: '{tmp_path}/app.db' is a folder" in told
    assert "did you mean" not in told


def test_folders_are_not_offered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "orders.db").mkdir()
    assert main(["stats", f"sqlite:///{tmp_path}/order.db"]) == 5
    assert f"there is no file '{tmp_path}/order.db'\n" in capsys.readouterr().err
