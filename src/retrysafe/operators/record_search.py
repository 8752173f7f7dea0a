"""Find records by key or id, and list them page by page.

A record's id is a hash of kind, namespace, scope and key. With the scope known, the ids are computed and read: one
lookup per kind. The first digits of an id are one range, in stores that list by id. A key alone is in no index: the
search reads all records page by page, in bounded memory and up to a limit. It reports its progress, and a cursor for
the next search. A store that `finds_keys` is asked for the key itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, cast, get_args

from retrysafe.core.keys import OBSERVED_PREFIX, observed_namespace, record_id
from retrysafe.core.ops import List, Lookup, Page
from retrysafe.core.records import Kind, Record
from retrysafe.core.states import State
from retrysafe.errors import UsageError
from retrysafe.operators.near_keys import NearKeys, guess_keys
from retrysafe.stores.base import Capabilities

PAGE_RECORDS = 200
"""How many records the first page of a search has. The next ones grow while their records are small (`fit_next_page`):
each page costs a look at an index, and DuckDB a look at the whole table."""
MAX_PAGE_RECORDS = 2_000
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""What the texts of a page may weigh, as far as the page before it tells."""
MAX_EXAMINED_RECORDS = 100_000
"""The default limit of one search. It takes a few seconds."""

EXAMINED_PAGE_RECORDS = 2_000
"""Where no index serves a filter, a page ends after so many records, whether any matched or not. So a command can say
how far it is, and be stopped, where few records of a large store match."""

DEFAULT_NAMESPACE = "default"

MIN_ID_DIGITS = 8
ID_DIGITS = 64


class RecordSource(Protocol):
    """What records are read from: a store, or a session."""

    @property
    def capabilities(self) -> Capabilities: ...
    def execute(self, op: Any) -> Any: ...
    def execute_many(self, ops: Any) -> list[Any]: ...


# Lists ------------------------------------------------------------------------------------------


Report = Callable[[int], None]
"""Called with the number of records that were examined so far."""


def iter_records(
    execute: Callable[[Any], Any], query: List, report: Report = lambda examined: None
) -> Iterator[Record]:
    """Yield every record of a list, page by page (`StateSearch`)."""
    yield from StateSearch(execute, query, query.limit, report=report)


def bound_pages(query: List) -> List:
    """The query with pages that end after a number of records, if it has a filter that no index serves. Pure."""
    unserved = query.scope is not None or query.kind is not None
    return replace(query, examine=EXAMINED_PAGE_RECORDS) if unserved and not query.examine else query


class RecordSearch:
    """The records of a list, page by page, until `limit` records have been examined (None: all). `cursor` is then the
    place to continue from; it is empty if there are no more records. Every page has `page_records`; without it pages
    grow."""

    def __init__(
        self,
        execute: Callable[[List], Any],
        query: List,
        limit: int | None,
        report: Report = lambda examined: None,
        page_records: int = 0,
    ) -> None:
        self._execute, self._query, self._report = execute, query, report
        self._page_records = page_records
        self._limit = float("inf") if limit is None else limit
        self.examined = 0
        self.cursor = query.cursor

    def __iter__(self) -> Iterator[Record]:
        page_records = self._page_records or PAGE_RECORDS
        while self.examined < self._limit:
            limit = int(min(page_records, self._limit - self.examined))
            page = self._execute(replace(self._query, cursor=self.cursor, limit=limit))
            yield from page.records
            self.examined += count_examined(page, limit, self._query.examine)
            self.cursor = page.cursor
            if not self.cursor:
                return
            self._report(self.examined)
            page_records = self._page_records or fit_next_page(page_records, page)


class StateSearch:
    """The records of a list until `examine` records have been examined (None: all). `complete` is then False.

    A list of uncertain records includes guards whose lease has lapsed: they can be resolved although the sweeper has
    not marked them as uncertain yet."""

    def __init__(
        self,
        execute: Callable[[Any], Any],
        query: List,
        page_records: int,
        examine: int | None = None,
        report: Report = lambda examined: None,
    ) -> None:
        self._execute, self._page_records, self._examine, self._report = execute, page_records, examine, report
        self._query = replace(query, examine=examine or query.examine)
        self.complete = True

    def __iter__(self) -> Iterator[Record]:
        left = self._examine
        for query, on_lapse in self._split():
            search = RecordSearch(self._execute, query, left, self._report, self._page_records)
            yield from (record for record in search if on_lapse in ("", record.on_lapse))
            left = None if left is None else left - search.examined
            self.complete = self.complete and not search.cursor

    def _split(self) -> list[tuple[List, str]]:
        """The lists, each with the `on_lapse` that it is for."""
        whole = [(self._query, "")]
        if self._query.state is State.UNCERTAIN and not self._query.lapsed:
            whole.append((replace(self._query, state=State.CLAIMED, lapsed=True), "uncertain"))
        return whole


def fit_next_page(page_records: int, page: Page) -> int:
    """How many records the page after this one has: twice as many while that is light, half as many if this one was
    heavy. Pure."""
    weight = sum(weigh_record(record) for record in page.records)
    if weight > MAX_PAGE_BYTES:
        return max(1, page_records // 2)
    light = 2 * weight <= MAX_PAGE_BYTES
    return max(page_records, min(2 * page_records, MAX_PAGE_RECORDS)) if light else page_records


def weigh_record(record: Record) -> int:
    """The bytes of what can be large in a record."""
    return len(record.progress) + len(record.input) + (0 if record.answer is None else len(record.answer.body))


def count_examined(page: Page, limit: int, examine: int) -> int:
    """How many records a page stands for. One that is short, and not the last, has examined as many as it was to. It
    may be empty, and counts as one record at least: without that a search is unbounded."""
    found = len(page.records) + len(page.unreadable)
    return max(1, found, examine if page.cursor and found < limit else 0)


# One key or id ----------------------------------------------------------------------------------


class RecordQuery(NamedTuple):
    """What the user asks for. None means: any."""

    key: str
    """The key, or the first digits of an id."""
    scope: str | None = None
    namespace: str | None = None
    kind: str | None = None

    @property
    def digits(self) -> str:
        """The key as digits of an id. Empty if it cannot be an id."""
        low = self.key.lower()
        fits = MIN_ID_DIGITS <= len(low) <= ID_DIGITS and all(digit in "0123456789abcdef" for digit in low)
        return low if fits else ""

    def compute_ids(self) -> list[bytes]:
        """Every id that the record can have. Without a scope no id can be computed."""
        if self.scope is None:
            return []
        own = self.namespace or DEFAULT_NAMESPACE
        # The application also owns the records of its observe mode.
        namespaces = (own,) if own.startswith(OBSERVED_PREFIX) else (own, observed_namespace(own))
        kinds: Iterable[str] = get_args(Kind) if self.kind is None else (self.kind,)
        return [
            record_id(cast("Kind", kind), namespace, self.scope, self.key) for namespace in namespaces for kind in kinds
        ]

    def matches_id(self, record: Record) -> bool:
        """True if the record's id begins with these digits."""
        return bool(self.digits) and record.id.hex().startswith(self.digits)

    def matches_filters(self, record: Record) -> bool:
        """True if scope, namespace and kind match. The key is not compared."""
        filters = ((self.scope, record.scope), (self.namespace, record.namespace), (self.kind, record.kind))
        return all(wanted is None or wanted == value for wanted, value in filters)


def cursor_before(digits: str) -> str:
    """The cursor of a list by id just before the ids that begin with these digits."""
    first = int(digits.ljust(ID_DIGITS, "0"), 16)
    return f"{first - 1:0{ID_DIGITS}x}" if first else ""


class RecordFinder:
    """Find the records of a query, the fastest way first. `search` is set once all records had to be searched.

    `to_act=True`: the caller will change the record that is found, so the finder must also find every other record
    that the same text can mean: a client may send a key that looks like the first digits of another record's id.
    `by_id=True`: the text is an id and not a key."""

    def __init__(
        self,
        store: RecordSource,
        query: RecordQuery,
        limit: int | None = None,
        after: str = "",
        *,
        to_act: bool = False,
        by_id: bool = False,
        report: Report = lambda examined: None,
    ) -> None:
        self._store, self._query, self._after, self._report = store, query, after, report
        self._to_act, self._by_id = to_act, by_id
        if by_id and not query.digits:
            raise UsageError(f"--id {query.key!r}: an id is {MIN_ID_DIGITS} to {ID_DIGITS} digits, 0 to 9 and a to f")
        self._limit = MAX_EXAMINED_RECORDS if limit is None else limit
        if self._limit < 1:
            raise UsageError(f"--examine {self._limit}: give 1 or more")
        self.search: RecordSearch | None = None
        self.near = NearKeys(query.key)
        """What was perhaps meant, if nothing is found."""

    @property
    def next_cursor(self) -> str:
        """Where to continue if the search ended at its limit; else empty."""
        return self.search.cursor if self.search is not None else ""

    @property
    def examined(self) -> int:
        """The number of records that were searched."""
        return self.search.examined if self.search is not None else 0

    def __iter__(self) -> Iterator[Record]:
        seen: set[bytes] = set()
        for record in () if self._after else self._look_up():
            seen.add(record.id)
            yield record
        unambiguous = self._by_id or not self._to_act
        if (seen and unambiguous) or (self._query.scope is not None and not self._by_id):
            if not seen:
                self._look_for_near()
            return
        if self._store.capabilities.finds_keys and not self._needs_all_ids:
            yield from (each for each in self._list_key(self._query.key) if each.id not in seen)
            return
        self.search = RecordSearch(self._store.execute, List(cursor=self._after), self._limit, self._report)
        for record in self.search:
            named = self._query.matches_id(record) or (record.key == self._query.key and not self._by_id)
            if named and self._query.matches_filters(record) and record.id not in seen:
                yield record
            elif not named and self._query.matches_filters(record):
                self.near.look_at(record)

    def _look_up(self) -> Iterator[Record]:
        digits = self._query.digits
        ids = [] if self._by_id else self._query.compute_ids()
        yield from self._read(ids)
        if len(digits) == ID_DIGITS and bytes.fromhex(digits) not in ids:
            ids.append(bytes.fromhex(digits))
            yield from (record for record in self._read(ids[-1:]) if self._query.matches_filters(record))
        if digits and self._store.capabilities.lists_by_id:
            for record in RecordSearch(self._store.execute, List(cursor=cursor_before(digits)), self._limit):
                if not self._query.matches_id(record):
                    return
                if self._query.matches_filters(record) and record.id not in ids:
                    yield record

    @property
    def _needs_all_ids(self) -> bool:
        """Whether ids have to be compared one by one: the text can be an id, and lists are not in the order of ids."""
        return bool(self._query.digits) and not self._store.capabilities.lists_by_id

    def _list_key(self, key: str) -> Iterator[Record]:
        """The records of this key, as the store finds them. If there are none, also those that were perhaps meant."""
        found = False
        for record in () if self._by_id else self._search_key(key):
            if self._query.matches_filters(record):
                found = True
                yield record
        for guess in () if found or self._by_id else guess_keys(key):
            for record in self._search_key(guess):
                if self._query.matches_filters(record):
                    self.near.look_at(record)

    def _search_key(self, key: str) -> Iterator[Record]:
        query = List(self._query.namespace, kind=self._query.kind, scope=self._query.scope, key=key)
        return iter(RecordSearch(self._store.execute, query, None))

    def _look_for_near(self) -> None:
        """Look up the keys that were perhaps meant. Not by a list of the scope, which no index has: a store would
        search all of it."""
        guesses = (self._query._replace(key=key) for key in guess_keys(self._query.key))
        for record in self._read([each for guess in guesses for each in guess.compute_ids()]):
            self.near.look_at(record)

    def _read(self, ids: list[bytes]) -> Iterator[Record]:
        replies = self._store.execute_many([Lookup(each) for each in ids]) if ids else []
        return (reply.record for reply in replies if reply.record is not None)
