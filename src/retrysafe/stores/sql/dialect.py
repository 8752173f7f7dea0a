"""A dialect turns the shared SQL texts into the SQL of one database. It is built once per store, not per call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

from retrysafe.core.moves import KEPT_AFTER_COMPLETION_MICROS
from retrysafe.core.records import CLOSED
from retrysafe.core.times import FOREVER_MICROS
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sql.rows import COLUMNS

_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_INCLUDED = re.compile(r"\{text ([a-z_]+)\}")


class Statement(NamedTuple):
    """One statement to send. `writes` is False if a read-only connection is enough. `prepared` is False if the query
    plan must not be kept, because it depends on the size of the table."""

    sql: str
    values: Mapping[str, Any]
    writes: bool = True
    prepared: bool = True


@dataclass(frozen=True)
class Dialect:
    """What differs between databases. `parameter` is the form of a bound value, with `{}` for its name."""

    package: str
    now: str
    empty: str
    least: str
    greatest: str
    patience: str = ""
    """A CTE named `patience` that limits the wait for a row lock; empty if the database has a setting for that."""
    limit: str = ""
    """The same for an owner's writes on our own connections. Not used in a user's transaction, where it would stay in
    effect after the statement."""
    brief: str = ""
    """The same for renewals: the next heartbeat comes soon, and other leases share the thread."""
    parameter: str = ":{}"
    insert_reads: bool = False
    """A claim may begin with the INSERT, because an INSERT of an id that exists takes no lock and writes nothing. Then
    a new key is one statement; and after a claim that met a record, the next one reads first (SqlPlans)."""
    try_lock: str = "1"
    """An expression: true if this transaction now holds the advisory lock `:lock`. 1 if the transaction holds the
    database's only write lock anyway."""
    began: str = "0"
    """A number that is another one in the next transaction; 0 where a savepoint tells instead."""
    savepoint: str = 'SAVEPOINT "{}"'
    release: str = 'RELEASE "{}"'
    no_savepoint: str = "no such savepoint"
    """Part of the error message when the transaction of a savepoint has ended."""
    create_meta: str = "CREATE TABLE IF NOT EXISTS {meta} (name text NOT NULL PRIMARY KEY, value text NOT NULL)"
    put_version: str = (
        "INSERT INTO {meta} (name, value) VALUES ('version', '{version}') "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    )
    """Store the number of the last applied migration in place of `{version}`."""
    find_table: str = ""
    """A query that has a row if a table exists: `{table}` is its quoted name, `{bare}` the name without schema."""
    find_columns: str = ""
    """A query for the names of a table's columns, with the same words; empty if nobody looks at columns."""
    finds_keys: bool = False
    """Lists of one key are filtered by it (`Capabilities.finds_keys`)."""
    oldest_reader: int = 2
    """The schema version of the release before this one, whose processes may work beside this schema (rule 17). A
    release sets it to the last version of the one before it."""

    def load(self, names: TableNames) -> dict[str, str]:
        """All texts by name. A text of the dialect replaces the shared text of the same name. `{text NAME}` stands for
        another text."""
        found = {**_read("retrysafe.stores.sql", "texts"), **_read(self.package, "sql")}
        return {
            name: self.fill(_INCLUDED.sub(lambda match: found[match.group(1)], text), names)
            for name, text in found.items()
        }

    def fill(self, text: str, names: TableNames) -> str:
        words = {
            "keys": names.keys,
            "meta": names.meta,
            "outbox": names.outbox,
            "receipts": names.receipts,
            "prefix": names.bare,
            "columns": ", ".join(COLUMNS),
            "nothing": ", ".join(["NULL"] * len(COLUMNS)),
            "now": self.now,
            "empty": self.empty,
            "least": self.least,
            "greatest": self.greatest,
            "with_patience": f"WITH {self.patience}" if self.patience else "",
            "from_patience": "FROM patience" if self.patience else "",
            "with_limit": f"WITH {self.limit}" if self.limit else "",
            "from_limit": "FROM patience" if self.limit else "",
            "with_brief": f"WITH {self.brief}" if self.brief else "",
            "from_brief": "FROM patience" if self.brief else "",
            "patience": self.patience,
            "try_lock": self.try_lock,
            "began": self.began,
            "forever": str(FOREVER_MICROS),
            "hour": str(KEPT_AFTER_COMPLETION_MICROS),
            "closed": str(CLOSED),
        }
        for word, value in words.items():
            text = text.replace("{" + word + "}", value)
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
        return _PARAMETER.sub(lambda match: self.parameter.format(match.group(1)), code).strip()


def _read(package: str, folder: str) -> dict[str, str]:
    root = files(package).joinpath(folder)
    if not root.is_dir():
        return {}
    return {item.name.removesuffix(".sql"): item.read_text() for item in root.iterdir() if item.name.endswith(".sql")}
