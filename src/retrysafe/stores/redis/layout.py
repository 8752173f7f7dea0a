"""The layout of the store in Redis: the names of the keys, the codes of states, the scripts.

    <prefix>{<bucket>}:<hex id>      one record, a hash of few fields, packed (rows.py)
    <prefix>{<bucket>}:births        index of the bucket's records by creation time: the order of listings
    <prefix>{<bucket>}:states        index by state, and within a state by end of lease, expiry or start
    <prefix>{<bucket>}:wait          touched when replicas are waited for (replicas.py); holds nothing
    <prefix>meta                     the layout's version, its number of buckets, the install's id

The bucket is the hash tag. A record and its indexes are in one cluster slot, so one script can reach all of them.
A single server has one bucket, a cluster has 16 by default. The number is part of the layout and cannot change once
there are records.

One sorted set holds all states, so that a change of state is one command. The score is a time in microseconds plus an
offset that depends on the state (its band). In the bands of claimed and completed records a double is exact to one
microsecond, in the other two bands to two microseconds. The order is uncertain, completed, claimed, released. Bands are
2^53 apart, plus a margin for times before 1970: no clock shows such times, but tests use them.
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
HEX_ID_CHARS = 64
"""The length of a record's id in hex: it is a SHA-256 (core/keys.py)."""

STATE_CODES = {State.CLAIMED: 1, State.RELEASED: 2, State.COMPLETED: 3, State.UNCERTAIN: 4}
LAPSE_CODES: dict[OnLapse, int] = {"uncertain": 0, "resume": 1, "rerun": 2}

_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class Layout:
    """The keys of one prefix."""

    __slots__ = ("_heads", "_indexes", "_packed", "_sized_heads", "buckets", "meta", "prefix")

    def __init__(self, prefix: str = DEFAULT_PREFIX, buckets: int = 1) -> None:
        self.prefix = check_prefix(prefix)
        self.buckets = check_buckets(buckets)
        self.meta = f"{prefix}meta".encode()
        self._heads = [f"{prefix}{{{bucket}}}:".encode() for bucket in range(buckets)]
        self._indexes = [tuple(head + name.encode() for name in INDEXES) for head in self._heads]
        self._packed = [b"".join(b"$%d\r\n%b\r\n" % (len(key), key) for key in keys) for keys in self._indexes]
        self._sized_heads = [b"$%d\r\n%b" % (len(head) + HEX_ID_CHARS, head) for head in self._heads]

    def record_keys(self, record_id: bytes) -> tuple[bytes, ...]:
        """The keys for an operation on one record: the indexes of its bucket, then the record."""
        bucket = record_id[0] % self.buckets
        return (*self._indexes[bucket], self._heads[bucket] + record_id.hex().encode())

    def packed_keys(self, record_id: bytes) -> tuple[bytes, bytes]:
        """Like `record_keys`, encoded as RESP: the record's key, and the index keys."""
        bucket, name = record_id[0] % self.buckets, record_id.hex()
        if len(name) == HEX_ID_CHARS:
            return self._sized_heads[bucket] + name.encode() + b"\r\n", self._packed[bucket]
        key = self._heads[bucket] + name.encode()
        return b"$%d\r\n%b\r\n" % (len(key), key), self._packed[bucket]

    def packed_bucket(self, record_id: bytes) -> tuple[bytes, bytes]:
        """Like `packed_keys`, but of the record's key only what all keys of its bucket begin with, without a size."""
        bucket = record_id[0] % self.buckets
        return self._heads[bucket], self._packed[bucket]

    def bucket_keys(self, bucket: int) -> tuple[bytes, ...]:
        """The keys for an operation on a whole bucket: its indexes, then the common start of its records' keys."""
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
    """A script and its SHA-1 digest, by which EVALSHA names it."""

    source: bytes
    sha: bytes
    many: bool
    """True if one call can process many records. The response is then a list with one reply for each record."""


_FAST_PATHS = {"claim": ("birth",), "settle": ("finish",)}
"""Scripts that run before the prelude and handle the common case without it. They process many records in one call."""


@cache
def load_script(name: str) -> LuaScript:
    """Load a script by name, with the shared prelude in front of it."""
    folder = files(__package__) / "scripts"
    parts = (*_FAST_PATHS.get(name, ()), "prelude", name)
    source = "".join((folder / f"{part}.lua").read_text("utf-8") for part in parts).encode()
    return LuaScript(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode(), name in _FAST_PATHS)
