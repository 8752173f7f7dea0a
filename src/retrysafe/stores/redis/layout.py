"""Where things are in Redis: the names of keys, the fields of a record, the scripts.

    <prefix>{<bucket>}:<hex id>      one record, a hash
    <prefix>{<bucket>}:claimed       its bucket's claimed records, by the end of their lease
    <prefix>{<bucket>}:released      … released ones, by their expiry
    <prefix>{<bucket>}:completed     … completed ones, by their expiry
    <prefix>{<bucket>}:uncertain     … uncertain ones, by when they were started
    <prefix>{<bucket>}:ids           all of them, by id, so that a listing can be continued after any change
    <prefix>meta                     the layout's version, its number of buckets, the install's id

The bucket is the hash tag: a record and all its indexes are in one cluster slot, so one script reaches them.
A single server needs one bucket; the number is part of the layout and cannot change once there are records.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from retrysafe.errors import BadName

VERSION = 1
DEFAULT_PREFIX = "retrysafe:"
MAX_BUCKETS = 256

INDEXES = ("claimed", "released", "completed", "uncertain", "ids")

# The first eleven are what prelude.lua judges by, the first fourteen what list.lua filters by: in this order.
FIELDS = (
    *("state", "attempt", "token", "fingerprint", "lease_until", "on_lapse", "point", "created", "started"),
    *("retention", "expires", "namespace", "kind", "scope", "key", "target", "run", "progress", "input"),
    *("status", "headers", "body", "gone", "note", "completed"),
)

_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class Layout:
    """The keys of one prefix."""

    __slots__ = ("_heads", "_indexes", "buckets", "meta", "prefix")

    def __init__(self, prefix: str = DEFAULT_PREFIX, buckets: int = 1) -> None:
        self.prefix = checked_prefix(prefix)
        self.buckets = checked_buckets(buckets)
        self.meta = f"{prefix}meta".encode()
        self._heads = [f"{prefix}{{{bucket}}}:".encode() for bucket in range(buckets)]
        self._indexes = [tuple(head + name.encode() for name in INDEXES) for head in self._heads]

    def of(self, record_id: bytes) -> tuple[bytes, ...]:
        """The keys for an operation on one record."""
        bucket = record_id[0] % self.buckets
        return (self._heads[bucket] + record_id.hex().encode(), *self._indexes[bucket])

    def bucket(self, bucket: int) -> tuple[bytes, ...]:
        """The keys for an operation on a whole bucket: the head of its records' names, then its indexes."""
        return (self._heads[bucket], *self._indexes[bucket])


def checked_prefix(prefix: str) -> str:
    if _PREFIX.fullmatch(prefix) is None:
        raise BadName(
            f"prefix {prefix!r} cannot begin a Redis key of ours: use 1 to 64 of A-Z a-z 0-9 _ . : - "
            f"(the default is {DEFAULT_PREFIX!r}); braces would break the cluster's hash tags"
        )
    return prefix


def checked_buckets(buckets: int) -> int:
    if not 1 <= buckets <= MAX_BUCKETS:
        raise BadName(f"buckets={buckets!r} is not possible: give a number from 1 to {MAX_BUCKETS}; 1 is the default")
    return buckets


class Script(NamedTuple):
    """A script, and the digest the server knows it by."""

    source: bytes
    sha: bytes


@cache
def script(name: str) -> Script:
    """The script of that name, behind the shared prelude."""
    folder = files(__package__) / "scripts"
    names = ", ".join(f"'{field}'" for field in FIELDS)
    parts = (
        f"local FIELDS = {{{names}}}\n",
        (folder / "prelude.lua").read_text("utf-8"),
        (folder / f"{name}.lua").read_text("utf-8"),
    )
    source = "".join(parts).encode()
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())
