"""Keys: a list with filters in the address, page by page. Nothing is counted first. A page examines a bounded number of
records, and says where to continue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, get_args

from retrysafe.console.access import LOOK
from retrysafe.console.messages import ConsoleRequest, ConsoleResponse
from retrysafe.console.visit import Visit
from retrysafe.core.ops import List
from retrysafe.core.records import Kind, Record
from retrysafe.core.states import STATES, State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.audit import AUDIT_KIND
from retrysafe.errors import UsageError
from retrysafe.operators.record_search import RecordFinder, RecordQuery, count_examined

KINDS = get_args(Kind)
PAGE_ROWS = 50
EXAMINED_ROWS = 2_000
"""How many records one page reads at most, whatever the filters."""
SCANNED_ROWS = 10_000
"""How many records the store passes over for one page, where it looks for rare ones itself."""
SHOWN_STATES = (*STATES, "lapsed")


class KeyFilter(NamedTuple):
    """The filters of the list, as the address has them. Empty means: any."""

    state: str = ""
    kind: str = ""
    target: str = ""
    scope: str = ""
    key: str = ""
    older_than: int = 0
    """Seconds since the attempt began."""

    @classmethod
    def read(cls, values: dict[str, list[str]]) -> KeyFilter:
        def first(name: str) -> str:
            return values.get(name, [""])[0].strip()

        state, kind, age = first("state"), first("kind"), first("older_than") or "0"
        if state and state not in SHOWN_STATES:
            raise UsageError(f"state {state!r}: there are {', '.join(SHOWN_STATES)}")
        if kind and kind not in KINDS:
            raise UsageError(f"kind {kind!r}: there are {', '.join(KINDS)}")
        if not age.isdecimal() or len(age) > 12:
            raise UsageError(f"older_than {age!r}: give a number of seconds")
        return cls(state, kind, first("target"), first("scope"), first("key"), int(age))

    def matches(self, record: Record, now: int) -> bool:
        """The part that the store does not filter by."""
        return (
            (record.kind != AUDIT_KIND or self.state == "uncertain")  # a command that died: it is counted as uncertain
            and (not self.target or record.target == self.target)
            and (not self.key or record.key == self.key)
            and record.started <= now - self.older_than * SECOND_MICROS
        )

    def params(self) -> dict[str, str]:
        return {name: str(value) for name, value in self._asdict().items() if value}


class KeyPage(NamedTuple):
    records: list[Record]
    next_cursor: str
    examined: int
    unreadable: int


def split_parts(wanted: KeyFilter, namespace: str) -> list[tuple[str, List, str]]:
    """The lists of a filter: the name of each, the list, and the `on_lapse` that it is for. A list of uncertain keys is
    two: those that are marked, and guards whose lease has lapsed."""
    base = List(namespace, None, wanted.kind or None, wanted.scope or None)
    lapsed = replace(base, state=State.CLAIMED, lapsed=True)
    if wanted.state == "lapsed":
        return [("l", lapsed, "")]
    if wanted.state == State.UNCERTAIN.value:
        return [("u", replace(base, state=State.UNCERTAIN), ""), ("g", lapsed, "uncertain")]
    return [("a", replace(base, state=STATES.get(wanted.state)), "")]


def read_page(visit: Visit, wanted: KeyFilter, cursor: str, rows: int = PAGE_ROWS) -> KeyPage:
    """At most `rows` records that match. `cursor` is the name of a part and the store's own cursor in it."""
    at, _, inner = cursor.partition(":")
    parts = split_parts(wanted, visit.session.namespace)
    names = [name for name, _, _ in parts]
    if cursor and at not in names:
        raise UsageError(f"cursor {cursor!r}: it belongs to another list")
    found: list[Record] = []
    examined = unreadable = 0
    for name, query, on_lapse in parts[names.index(at) if cursor else 0 :]:
        while True:
            # After the first step only as far as this page may still go: each step asks the store where it ends.
            bound = max(rows, EXAMINED_ROWS - examined) if examined else SCANNED_ROWS
            page = visit.session.execute(replace(query, cursor=inner, limit=rows, examine=bound))
            # The end of a list is no record that was examined: an empty store has none.
            whole = len(page.records) + len(page.unreadable)
            examined += count_examined(page, rows, bound) if page.cursor else whole
            unreadable += len(page.unreadable)
            found += [
                each
                for each in page.records
                if wanted.matches(each, visit.now) and on_lapse in ("", each.on_lapse) and visit.may(LOOK, each)
            ]
            inner = page.cursor
            if len(found) >= rows or examined >= EXAMINED_ROWS:
                return KeyPage(found, _next_cursor(names, name, inner), examined, unreadable)
            if not inner:
                break
    return KeyPage(found, "", examined, unreadable)


def _next_cursor(names: list[str], name: str, inner: str) -> str:
    if inner:
        return f"{name}:{inner}"
    rest = names[names.index(name) + 1 :]
    return f"{rest[0]}:" if rest else ""


def find_exact(visit: Visit, wanted: KeyFilter) -> Iterator[Record]:
    """The records of one key in one scope: their ids are computed, so nothing is searched."""
    query = RecordQuery(wanted.key, wanted.scope, visit.session.namespace, wanted.kind or None)
    found = RecordFinder(visit.session, query)
    return (each for each in found if each.key == wanted.key and visit.may(LOOK, each))


def show_keys(visit: Visit) -> ConsoleResponse:
    request: ConsoleRequest = visit.request
    wanted = KeyFilter.read(request.params)
    if wanted.key and wanted.scope:
        records = list(find_exact(visit, wanted))
        page = KeyPage(records, "", len(records), 0)
    else:
        page = read_page(visit, wanted, request.param("cursor"))
    next_url = request.url("/keys", **wanted.params(), cursor=page.next_cursor) if page.next_cursor else ""
    return visit.render(
        "keys.html",
        title="Keys",
        wanted=wanted,
        page=page,
        next_url=next_url,
        kinds=KINDS,
        states=SHOWN_STATES,
        now=visit.now,
        bulk_verbs=find_bulk_verbs(visit, wanted),
    )


def find_bulk_verbs(visit: Visit, wanted: KeyFilter) -> list[str]:
    """Bulk actions that can apply to this list. Others are not drawn."""
    if wanted.key:
        verbs = []  # one key is acted on from its own page
    elif wanted.state == State.UNCERTAIN.value:
        verbs = ["keys resolve"]
    elif wanted.state in ("lapsed", State.CLAIMED.value):
        verbs = ["keys release"]
    else:
        verbs = []
    return [verb for verb in verbs if visit.may(verb)]
