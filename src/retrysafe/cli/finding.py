"""Finding the records of one key.

A record's id is a digest of kind, namespace, scope and key: whoever has the scope has the ids, and that is one look for
each kind. The first digits of an id are one page, where lists go by id. A key alone is in no index: it is searched for,
page by page, in bounded memory, up to a limit, and whoever searches is told how far it is and how to go on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, get_args

from retrysafe.core.keys import record_id
from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Kind, Record
from retrysafe.errors import UsageError
from retrysafe.stores.base import Store

PAGE = 200
EXAMINED = 100_000
"""Records that one search looks at, at most: some seconds."""

TOLD_EVERY = 20_000
DEFAULT_NAMESPACE = "default"
OBSERVED = "observed:"
"""In front of a namespace: where observe mode keeps what it would have done. Its application owns both."""

LEAST_DIGITS = 8
ALL_DIGITS = 64


class Wanted(NamedTuple):
    """What somebody asks for, as far as it was said."""

    key: str
    """Or the first digits of an id."""
    scope: str | None = None
    namespace: str | None = None
    kind: Kind | None = None

    @property
    def digits(self) -> str:
        """The key as digits of an id, if it can be them."""
        low = self.key.lower()
        fits = LEAST_DIGITS <= len(low) <= ALL_DIGITS and all(digit in "0123456789abcdef" for digit in low)
        return low if fits else ""

    def ids(self) -> list[bytes]:
        """Every id it can have. Without a scope there is none to make."""
        if self.scope is None:
            return []
        own = self.namespace or DEFAULT_NAMESPACE
        namespaces = (own,) if own.startswith(OBSERVED) else (own, OBSERVED + own)
        kinds: Iterable[Kind] = get_args(Kind) if self.kind is None else (self.kind,)
        return [record_id(kind, namespace, self.scope, self.key) for namespace in namespaces for kind in kinds]

    def fits(self, record: Record) -> bool:
        """Whether it is of those that were asked for, whatever its key."""
        asked = ((self.scope, record.scope), (self.namespace, record.namespace), (self.kind, record.kind))
        return all(value is None or value == has for value, has in asked)


def cursor_before(digits: str) -> str:
    """Where a list by id stands just before the ids that begin with these digits."""
    first = int(digits.ljust(ALL_DIGITS, "0"), 16)
    return f"{first - 1:0{ALL_DIGITS}x}" if first else ""


class Search:
    """The records of a list, page by page, until `most` have been looked at. `cursor` says where to go on after that;
    it is empty when there are no more."""

    def __init__(
        self, execute: Callable[[List], Any], wanted: List, most: int, tell: Callable[[int], None] = lambda looked: None
    ) -> None:
        self._execute, self._wanted, self._most, self._tell = execute, wanted, most, tell
        self.looked = 0
        self.cursor = wanted.cursor

    def __iter__(self) -> Iterator[Record]:
        while self.looked < self._most:
            limit = min(PAGE, self._most - self.looked)
            page = self._execute(replace(self._wanted, cursor=self.cursor, limit=limit))
            yield from page.records
            # A page may be empty and not the last: it counts too, or there would be no bound.
            self.looked += max(1, len(page.records) + len(page.unreadable))
            self.cursor = page.cursor
            if not self.cursor:
                return
            self._tell(self.looked)


def telling() -> Callable[[int], None]:
    """Says on standard error how far a long search is."""
    told = 0

    def tell(looked: int) -> None:
        nonlocal told
        if looked - told >= TOLD_EVERY:
            told = looked
            print(f"{looked:,} records looked at", file=sys.stderr, flush=True)

    return tell


class Finder:
    """Finds what was asked for, the quickest way first. `search` is there once it came to a search.

    `to_act`: something will be done to what is found, so whatever else is meant by the same word must be found too: a
    client may send a key that reads like digits of somebody else's id. `by_id`: the word is an id, and no key."""

    def __init__(
        self,
        store: Store,
        wanted: Wanted,
        most: int | None = None,
        after: str = "",
        *,
        to_act: bool = False,
        by_id: bool = False,
    ) -> None:
        self._store, self._wanted, self._after = store, wanted, after
        self._to_act, self._by_id = to_act, by_id
        if by_id and not wanted.digits:
            raise UsageError(f"--id {wanted.key!r}: an id is {LEAST_DIGITS} to {ALL_DIGITS} digits, 0 to 9 and a to f")
        self._most = EXAMINED if most is None else most
        if self._most < 1:
            raise UsageError(f"--examine {self._most}: ask for at least one")
        self.search: Search | None = None

    @property
    def unfinished(self) -> str:
        """Where to go on, if the search was ended by its limit."""
        return self.search.cursor if self.search is not None else ""

    def __iter__(self) -> Iterator[Record]:
        seen: set[bytes] = set()
        for record in () if self._after else self._look_up():
            seen.add(record.id)
            yield record
        unambiguous = self._by_id or not self._to_act
        if (seen and unambiguous) or (self._wanted.scope is not None and not self._by_id):
            return
        self.search = Search(self._store.execute, List(cursor=self._after), self._most, telling())
        for record in self.search:
            named = self._begins(record) or (record.key == self._wanted.key and not self._by_id)
            if named and self._wanted.fits(record) and record.id not in seen:
                yield record

    def _look_up(self) -> Iterator[Record]:
        digits = self._wanted.digits
        ids = [] if self._by_id else self._wanted.ids()
        yield from self._read(ids)
        if len(digits) == ALL_DIGITS and bytes.fromhex(digits) not in ids:
            ids.append(bytes.fromhex(digits))
            yield from (record for record in self._read(ids[-1:]) if self._wanted.fits(record))
        if digits and self._store.capabilities.lists_by_id:
            for record in Search(self._store.execute, List(cursor=cursor_before(digits)), self._most):
                if not self._begins(record):
                    return
                if self._wanted.fits(record) and record.id not in ids:
                    yield record

    def _read(self, ids: list[bytes]) -> Iterator[Record]:
        replies = self._store.execute_many([Lookup(each) for each in ids]) if ids else []
        return (reply.record for reply in replies if reply.record is not None)

    def _begins(self, record: Record) -> bool:
        return bool(self._wanted.digits) and record.id.hex().startswith(self._wanted.digits)
