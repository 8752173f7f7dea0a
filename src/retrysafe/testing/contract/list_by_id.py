"""Lists sorted by id. For stores whose `capabilities.lists_by_id` is true."""

from __future__ import annotations

from retrysafe.testing.builders import claim, listing
from retrysafe.testing.driver import Do


def test_a_list_can_begin_at_any_id(do: Do) -> None:
    """People ask for a record by the first digits of its id. That takes one page, not a search of all records."""
    ids = sorted(op.id for op in (claim(f"k{number}", now=0) for number in range(20)))
    do.many([claim(f"k{number}", now=0) for number in range(20)])
    for index, each in enumerate(ids):
        before = int.from_bytes(each[:4].ljust(32, b"\0"), "big") - 1
        page = do(listing(limit=3, cursor=f"{before:064x}"))
        assert [record.id for record in page.records] == ids[index : index + 3]
