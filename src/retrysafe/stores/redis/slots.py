"""Which node of a cluster has what, as far as we know, and how a node tells us that we are wrong."""

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
    """The slot of a key: of what is in its first braces, or of all of it."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    return crc_hqx(key[start + 1 : end] if end > start + 1 else key, 0) % SLOT_COUNT


class Redirect(NamedTuple):
    """A node says that a slot is another's: for good, or for this one command (`asking`)."""

    slot: int
    address: Address
    asking: bool


def read_redirect(response: Any, asked: Address) -> Redirect | None:
    """Where a refusal points to, if it is one of those. Without a host it means the one that was asked."""
    if not isinstance(response, Exception):
        return None
    code = error_code(response)
    found = _REDIRECT.match(str(response)) if code in ("MOVED", "ASK") else None
    if found is None:
        return None
    host = found["host"].removeprefix("[").removesuffix("]")
    return Redirect(int(found["slot"]), (host or asked[0], int(found["port"])), code == "ASK")


def is_slot_moving(response: Any) -> bool:
    """A slot is on its way, and what this needs is partly here and partly there: nothing can be said until it is."""
    return isinstance(response, Exception) and (error_code(response) == "TRYAGAIN" or _NON_LOCAL_KEY in str(response))


def is_cluster_down(response: Any) -> bool:
    return isinstance(response, Exception) and error_code(response) == "CLUSTERDOWN"


class Topology:
    """The owner of each slot."""

    def __init__(self, seeds: Iterable[Address]) -> None:
        self._seeds = list(seeds)
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int, Address]] = []
        self._moved: dict[int, Address] = {}
        self.stale = True
        """Whether to ask again before the next command."""

    def owner_of(self, slot: int) -> Address | None:
        """Nobody, if nothing is known."""
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
        """Whom to ask: those that served us before, then those that were named at the start."""
        return list(dict.fromkeys([*self.primaries(), *self._seeds]))

    def learn(self, reply: Any, asked: Address) -> None:
        """From CLUSTER SLOTS: ranges with their primary in front. An empty host means the one that was asked."""
        ranges = []
        for first, last, primary, *_ in reply:
            host = primary[0].decode() if isinstance(primary[0], bytes) else primary[0]
            ranges.append((int(first), int(last), (host if host not in (None, "", "?") else asked[0], int(primary[1]))))
        self._ranges = sorted(ranges)
        self._starts = [first for first, _, _ in self._ranges]
        self._moved = {}
        self.stale = False

    def move(self, slot: int, address: Address) -> None:
        self._moved[slot] = address
