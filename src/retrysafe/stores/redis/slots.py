"""Hash slots of a cluster: the slot of a key, the node that owns each slot, and redirects that correct this
knowledge."""

from __future__ import annotations

import re
from binascii import crc_hqx
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from retrysafe.stores.redis.failures import error_code

SLOT_COUNT = 16384

Address = tuple[str, int]

_REDIRECT = re.compile(r"(?:MOVED |ASK )?(?P<slot>[0-9]+) (?P<host>.*):(?P<port>[0-9]+)")
_NON_LOCAL_KEY = "non local key"


def slot_of(key: bytes) -> int:
    """The hash slot of a key: of the hash tag in its first braces, or of the whole key."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    return crc_hqx(key[start + 1 : end] if end > start + 1 else key, 0) % SLOT_COUNT


class Redirect(NamedTuple):
    """A node says that another node owns the slot: permanently (MOVED), or for this command only (ASK, `asking`)."""

    slot: int
    address: Address
    asking: bool


def read_redirect(response: Any, asked: Address) -> Redirect | None:
    """Parse a MOVED or ASK error; None for any other response. A redirect without a host means the host that was
    asked."""
    if not isinstance(response, Exception):
        return None
    code = error_code(response)
    found = _REDIRECT.match(str(response)) if code in ("MOVED", "ASK") else None
    if found is None:
        return None
    host = found["host"].removeprefix("[").removesuffix("]")
    return Redirect(int(found["slot"]), (host or asked[0], int(found["port"])), code == "ASK")


def is_slot_moving(response: Any) -> bool:
    """True if the slot is being moved and the command's keys are split between two nodes. It must be tried later."""
    return isinstance(response, Exception) and (error_code(response) == "TRYAGAIN" or _NON_LOCAL_KEY in str(response))


def is_cluster_down(response: Any) -> bool:
    return isinstance(response, Exception) and error_code(response) == "CLUSTERDOWN"


class Topology:
    """The node that owns each slot, as far as is known."""

    def __init__(self, seeds: Iterable[Address]) -> None:
        self._seeds = list(seeds)
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, Address]] = []
        self._moved: dict[int, Address] = {}
        self.stale = True
        """True if the topology must be read again before the next command."""

    def owner_of(self, slot: int) -> Address | None:
        """The node that owns the slot. None if it is not known."""
        if slot in self._moved:
            return self._moved[slot]
        place = bisect_right(self._starts, slot) - 1
        if place < 0:
            return None
        _, last, address = self._ranges[place]
        return address if slot <= last else None

    def primaries(self) -> list[Address]:
        return list(dict.fromkeys([*(owner for _, _, owner in self._ranges), *self._moved.values()]))

    def known_addresses(self) -> list[Address]:
        """All known nodes: first the known primaries, then those that the URL names."""
        return list(dict.fromkeys([*self.primaries(), *self._seeds]))

    def learn(self, reply: Any, asked: Address) -> None:
        """Read a CLUSTER SLOTS reply: ranges, each with its primary first. An empty host means the host that was
        asked."""
        ranges = []
        for first, last, primary, *_ in reply:
            host = primary[0].decode() if isinstance(primary[0], bytes) else primary[0]
            ranges.append((int(first), int(last), (host if host not in (None, "", "?") else asked[0], int(primary[1]))))
        self._ranges = sorted(ranges)
        self._starts = [first for first, _, _ in self._ranges]
        self._moved = {}
        self.stale = False

    def move(self, slot: int, address: Address) -> None:
        """Record a MOVED redirect."""
        self._moved[slot] = address
