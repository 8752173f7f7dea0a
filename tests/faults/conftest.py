from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.replaced import Place
from tests.opening import open_migrated, patient, unique, with_option


@pytest.fixture
def place(store: str, colour: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    prefix, file = unique("frozen_"), str(tmp_path / "store.db")
    if store == "sqlite":
        url, database = f"sqlite:///{file}", file
    else:
        server = request.getfixturevalue(f"{store}_url")
        url = with_option(patient(store, server), "table" if store == "postgres" else "prefix", prefix)
        database = server if store == "postgres" else file
    made = Place(store, colour, url, database, tmp_path, open_migrated(url, "sync"), f"{prefix}_rows")
    if store == "redis":
        open_migrated(f"sqlite:///{file}", "sync").close()  # for the receipts of local steps
    made.sql(f"CREATE TABLE {made.rows} (item text, step text)")
    try:
        yield made
    finally:
        made.close()
