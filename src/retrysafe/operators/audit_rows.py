"""The audit rows of an application, in the order of time."""

from __future__ import annotations

from collections.abc import Iterator

from retrysafe.core.ops import List
from retrysafe.engine.audit import AUDIT_KIND, AuditRow, audit_prefix, read_audit
from retrysafe.operators.record_search import MAX_EXAMINED_RECORDS, RecordSearch, Report
from retrysafe.operators.session import Session


class AuditSearch:
    """The rows, oldest first, from a time on, until `limit` records were examined. A store that lists by id reads only
    rows; another one searches all records, `examine` at a time, from `cursor` on. `complete` is False if there may be
    more."""

    def __init__(
        self,
        session: Session,
        since: int = 0,
        limit: int | None = MAX_EXAMINED_RECORDS,
        report: Report = lambda examined: None,
        *,
        examine: int = 0,
        cursor: str = "",
    ) -> None:
        self._session, self._since = session, since
        self._prefix = audit_prefix(session.namespace)
        self._by_id = session.capabilities.lists_by_id
        # A filter would make the store search on to the next audit row of another prefix, so `__iter__` stops there.
        query = List(session.namespace, kind=AUDIT_KIND, cursor=cursor, examine=examine)
        if self._by_id:
            query = List(cursor=(self._prefix + since.to_bytes(8, "big")).hex() if since else self._prefix.hex())
        self._search = RecordSearch(session.execute, query, limit, report)
        self._passed = False

    @property
    def complete(self) -> bool:
        return self._passed or not self._search.cursor

    @property
    def next_cursor(self) -> str:
        """Where to search on. Empty at the end, and in a store that lists by id: ask from a later time on there."""
        return "" if self._by_id else self._search.cursor

    def __iter__(self) -> Iterator[AuditRow]:
        found, now = [], self._session.read_time()
        for record in self._search:
            if self._by_id and not record.id.startswith(self._prefix):
                self._passed = True
                return
            if record.kind == AUDIT_KIND and record.namespace == self._session.namespace:
                if self._by_id:
                    yield read_audit(record, now)
                elif record.created >= self._since:
                    found.append(record)
        for record in sorted(found, key=lambda record: record.created):
            yield read_audit(record, now)


MAX_HALVINGS = 40
"""From a year down to less than a millisecond."""


def read_newest(session: Session, since: int, wanted: int) -> list[AuditRow]:
    """The newest rows of a store that lists by id, oldest first: about `wanted` of very many since `since`.
    Such a store reads forward only. So a stretch before now is halved until it ends within twice as many rows."""
    now = session.read_time()
    short, long = 0, now - since
    found: list[AuditRow] = []
    for _ in range(MAX_HALVINGS):
        span = (short + long) // 2
        search = AuditSearch(session, since=now - span, limit=2 * wanted)
        rows = list(search)
        if not search.complete:
            long = span
            continue
        short, found = span, rows
        if len(found) >= wanted:
            break
    return found
