"""Lists of one key. For stores whose `capabilities.finds_keys` is true."""

from __future__ import annotations

from dataclasses import replace

from retrysafe.testing.builders import claim, listing
from retrysafe.testing.contract.listing import populate
from retrysafe.testing.driver import Do


def test_a_list_of_one_key_has_nothing_else(do: Do) -> None:
    """In every scope, kind and namespace, and nothing else."""
    populate(do)
    for scope in ("s1", "s2", "s3"):
        assert do(claim("shared", scope=scope, now=0)).granted
    wanted = replace(listing(now=10), key="shared", limit=2)
    first = do(wanted)
    rest = do(replace(wanted, cursor=first.cursor))
    assert (len(first.records), len(rest.records), rest.cursor) == (2, 1, "")
    assert {record.scope for record in (*first.records, *rest.records)} == {"s1", "s2", "s3"}
    assert {record.key for record in (*first.records, *rest.records)} == {"shared"}
    (one,) = do(replace(wanted, scope="s2")).records
    assert one.scope == "s2"
    assert do(replace(wanted, key="share")) == do(replace(wanted, key="SHARED")) == do(replace(wanted, key=""))
    assert do(replace(wanted, key="share")).records == ()
