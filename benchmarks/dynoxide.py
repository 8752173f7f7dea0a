"""Fills a table of Dynoxide, the DynamoDB server of the tests, with many settled records: straight into its file.

By requests, a million items take hours, because each batch of 25 is a commit. The server is stopped meanwhile, and
reads the rows as its own afterwards. `to_rows` writes what Dynoxide 1.2.1 writes; `tests/bench/test_dynoxide.py`
compares the two.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sqlite3
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from tests.servers import Server

from retrysafe.core.records import Record
from retrysafe.stores.dynamodb.items import to_item

INDEX_ATTRIBUTES = ("id", "shelf", "expires", "lease")
BATCH = 5_000


class Rows(NamedTuple):
    """One item, as a row of its table and as a row of the index by state."""

    item: tuple[str, str, str, int, None, str]
    index: tuple[str, str, str, str, str]


def fill(server: Server, table: str, records: Iterable[Record]) -> None:
    """Add the records to a table that exists. The server is not running when this begins to write."""
    assert server.folder is not None
    path = server.folder / "db.sqlite"
    server.kill()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA synchronous = OFF")
        rows = (to_rows(record) for record in records)
        while batch := list(islice(rows, BATCH)):
            db.executemany(f'INSERT INTO "{table}" VALUES (?, ?, ?, ?, ?, ?)', (each.item for each in batch))
            db.executemany(
                f'INSERT INTO "{table}::gsi::by_state" VALUES (?, ?, ?, ?, ?)', (each.index for each in batch)
            )
    db.close()
    server.resume()


def to_rows(record: Record) -> Rows:
    item = {name: _encode(value) for name, value in to_item(record, 1).items()}
    name, shelf = f"B:{record.id.hex()}", f"S:{item['shelf']['S']}"
    projected = {each: item[each] for each in INDEX_ATTRIBUTES}
    # The server writes the size of an item and uses it for its limit of a megabyte for each page.
    size = sum(len(each) + _measure(value) for each, value in to_item(record, 1).items())
    # Scans are in the order of this digest, as they are in Amazon's server: not in the order of ids.
    prefix = hashlib.md5(b"Outliers" + record.id, usedforsecurity=False).hexdigest()[:6]
    return Rows(
        (name, "", json.dumps(item), size, None, prefix),
        (shelf, f"N:{sortable(record.expires)}", name, "", json.dumps(projected)),
    )


def sortable(number: int) -> str:
    """A positive number as a text that sorts as the number does: a sign, the exponent, the digits."""
    digits = str(number)
    return f"2{5000 + len(digits)}{digits:0<40}"


def _encode(value: dict[str, Any]) -> dict[str, Any]:
    return {kind: base64.b64encode(each).decode() if kind == "B" else each for kind, each in value.items()}


def _measure(value: dict[str, Any]) -> int:
    [(kind, each)] = value.items()
    return (len(each.rstrip("0")) + 1) // 2 + 1 if kind == "N" else len(each)
