"""Where things are in Redis: the names of keys, the fields of a record, the scripts.

    <prefix>{<bucket>}:<hex id>      one record, a hash of few fields, packed (rows.py)
    <prefix>{<bucket>}:births        its bucket's records by the moment of their birth: the order of listings
    <prefix>{<bucket>}:states        … by state, and in it by the end of the lease, the expiry or the start
    <prefix>{<bucket>}:wait          touched where replicas are waited for (replicas.py); holds nothing
    <prefix>meta                     the layout's version, its number of buckets, the install's id

The bucket is the hash tag: a record and all its indexes are in one cluster slot, so one script reaches them.
A single server needs one bucket, a cluster has 16 unless told otherwise; the number is part of the layout and cannot
change once there are records.

One index holds all states, so that a move is one command: the score is a time in microseconds plus where its state's
band is. Claimed and completed records have the bands in which doubles are exact to the microsecond; the two others are
exact to two. They lie in the order uncertain, completed, claimed, released, 2^53 apart and a margin between them, which
is for moments before 1970: no clock shows them, but tests do.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from retrysafe.core.states import OnLapse, State
from retrysafe.errors import BadName

LAYOUT_VERSION = 1
DEFAULT_PREFIX = "retrysafe:"
MAX_BUCKETS = 256

INDEXES = ("births", "states")

STATE_CODES = {State.CLAIMED: 1, State.RELEASED: 2, State.COMPLETED: 3, State.UNCERTAIN: 4}
LAPSE_CODES: dict[OnLapse, int] = {"uncertain": 0, "resume": 1, "rerun": 2}

_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class Layout:
    """The keys of one prefix."""

    __slots__ = ("_heads", "_indexes", "_packed", "buckets", "meta", "prefix")

    def __init__(self, prefix: str = DEFAULT_PREFIX, buckets: int = 1) -> None:
        self.prefix = check_prefix(prefix)
        self.buckets = check_buckets(buckets)
        self.meta = f"{prefix}meta".encode()
        self._heads = [f"{prefix}{{{bucket}}}:".encode() for bucket in range(buckets)]
        self._indexes = [tuple(head + name.encode() for name in INDEXES) for head in self._heads]
        self._packed = [b"".join(b"$%d\r\n%b\r\n" % (len(key), key) for key in keys) for keys in self._indexes]

    def record_keys(self, record_id: bytes) -> tuple[bytes, ...]:
        """The keys for an operation on one record: its bucket's indexes, then itself."""
        bucket = record_id[0] % self.buckets
        return (*self._indexes[bucket], self._heads[bucket] + record_id.hex().encode())

    def packed_record_keys(self, record_id: bytes) -> tuple[bytes, bytes, bytes]:
        """The same: the record's key in its two parts, and the indexes as they travel."""
        bucket = record_id[0] % self.buckets
        return record_id.hex().encode(), self._heads[bucket], self._packed[bucket]

    def bucket_keys(self, bucket: int) -> tuple[bytes, ...]:
        """The keys for an operation on a whole bucket: its indexes, then the head of its records' names."""
        return (*self._indexes[bucket], self._heads[bucket])


def check_prefix(prefix: str) -> str:
    if _PREFIX.fullmatch(prefix) is None:
        raise BadName(
            f"prefix {prefix!r} cannot begin a Redis key of ours: use 1 to 64 of A-Z a-z 0-9 _ . : - "
            f"(the default is {DEFAULT_PREFIX!r}); braces would break the cluster's hash tags"
        )
    return prefix


def check_buckets(buckets: int) -> int:
    if not 1 <= buckets <= MAX_BUCKETS:
        raise BadName(f"buckets={buckets!r} is not possible: give a number from 1 to {MAX_BUCKETS}; 1 is the default")
    return buckets


class LuaScript(NamedTuple):
    """A script, and the digest the server knows it by."""

    source: bytes
    sha: bytes
    many: bool
    """Whether one call can do it for many records; then each has a reply of its own."""


_FAST_PATHS = {"claim": ("birth",), "settle": ("finish",)}
"""What comes before the prelude: the common case, without it. Those that have one are made for many records."""


@cache
def load_script(name: str) -> LuaScript:
    """The script of that name, behind the shared prelude."""
    folder = files(__package__) / "scripts"
    parts = (*_FAST_PATHS.get(name, ()), "prelude", name)
    source = "".join((folder / f"{part}.lua").read_text("utf-8") for part in parts).encode()
    return LuaScript(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode(), name in _FAST_PATHS)
