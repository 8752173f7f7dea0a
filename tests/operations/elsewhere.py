"""A store that is not the user's database: local steps leave receipts there (docs/decisions/0064-receipts-go.md)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retrysafe import KeyRing, RetrySafe
from retrysafe.core.ops import Advance, List
from retrysafe.core.states import State
from retrysafe.stores.registry import open_store
from tests.opening import unique


class Elsewhere:
    """A store that is not SQL, and a user's SQLite file with our tables in it."""

    def __init__(self, url: str, folder: Path, keyring: KeyRing | None = None, forms: Any = "previous") -> None:
        self.forms = forms
        self.path = folder / f"{unique()}.db"
        store = open_store(f"sqlite:///{self.path}")
        store.migrate()
        store.close()
        self.sql("CREATE TABLE items (item text)")
        self.url = url
        self.keyring = keyring
        self.safe = self.open()

    def open(self) -> RetrySafe:
        return RetrySafe(self.url, tx=self.path, keyring=self.keyring, forms=self.forms)

    def sql(self, statement: str) -> list[Any]:
        with sqlite3.connect(self.path) as db:
            found = db.execute(statement).fetchall()
        db.close()
        return found

    def items(self) -> list[str]:
        return [item for (item,) in self.sql("SELECT item FROM items")]

    def close(self) -> None:
        self.safe.close()


class Killed(BaseException):
    """Stands for SIGKILL: the code under test does not catch it."""


def die_inside(elsewhere: Elsewhere, run: Callable[[], Any]) -> None:
    """Run until Killed. A process that was killed writes nothing down on its way out, and its lease lapses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retrysafe.operations.flow.settle_interrupted", lambda *args: iter(()))
        with pytest.raises(Killed):
            run()
    lapse(elsewhere)


def lapse(elsewhere: Elsewhere) -> None:
    """Give up the dead owner's lease in its name."""
    (record,) = elsewhere.safe.execute(List(state=State.CLAIMED)).records
    where = (record.advances + 1, record.point, record.progress)
    assert elsewhere.safe.execute(Advance(record.id, record.fence, *where, "resume", 0))
