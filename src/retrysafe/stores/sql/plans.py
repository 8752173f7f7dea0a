"""Each operation as a plan: which statements to send, and how to read their rows. A plan does no I/O, so every SQL
store, sync or async, and the user's own connections use the same plans.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from retrysafe.core.backlog import Backlog, BacklogReply, OpenGroup
from retrysafe.core.jobs import StagedJob, TakeJobs
from retrysafe.core.moves import Grant, build_new_record, decide_grant, is_recognised
from retrysafe.core.ops import (
    Advance,
    Claim,
    ClaimReply,
    Complete,
    Fenced,
    Forget,
    ForgetMarker,
    Install,
    List,
    Lookup,
    LookupCommit,
    LookupReply,
    Op,
    Page,
    Reap,
    Release,
    Renew,
    Resolve,
    Stats,
    StatsReply,
    Suspect,
    Withdraw,
)
from retrysafe.core.states import State
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import LockNotAvailable, Plan, read_id_cursor, read_page
from retrysafe.stores.sql import job_plans, rows
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import TableNames

R = TypeVar("R")

MAX_CLAIM_TRIES = 20
"""How often a claim starts again when other claims change the record between its statements. Each time one wins."""

_BEFORE_ALL = -(1 << 63)
"""Before every time that a column can hold."""

_RECOGNISABLE = (Advance, Complete, Release, Withdraw, Suspect, Resolve)


MAX_DEADLOCK_TRIES = 20
"""Deadlocks in a row before an operation gives up. Each one means that another transaction committed."""


class RetryNow(Exception):
    """The server rolled the operation back because of another one (deadlock, serialization failure): send it again."""


class ErrorFactories(NamedTuple):
    """The errors with which a store gives up an operation."""

    lock_timeout_error: Callable[[], StoreUnavailable]
    too_many_deadlocks_error: Callable[[int], StoreUnavailable]
    is_demoted: Callable[[Exception], bool]
    """True if the server refused because it is not the primary. A new connection may lead to the primary."""


class SqlPlans:
    """The statements of one installation."""

    def __init__(self, dialect: Dialect, names: TableNames) -> None:
        self._dialect = dialect
        self.texts = dialect.load(names)
        self._keys = dialect.fill("{keys}", names)
        self._fill = job_plans.build_fill(dialect)
        self._lists: dict[tuple[str, str], str] = {}
        self._has_insert_or_read = "insert_or_read" in self.texts
        self._has_reap_onward = "reap_onward" in self.texts
        self._reaped_to: dict[str | None, int] = {}
        """When the last record of a full batch expired, by namespace: the next batch begins there (`reap_onward`)."""
        self.expects_record = False
        """What the last claim met, for a dialect with `insert_reads`: the next one begins with what will suffice."""

    def plan_operation(self, op: Op[R]) -> Plan[Statement, R]:
        """The plan of an operation."""
        plan: Plan[Statement, R] = _PLANS[type(op)](self, op)
        return plan

    def plan_without_read(self, op: Op[R]) -> Plan[Statement, R]:
        """Like `plan_operation`, but a claim goes straight to INSERT. Use it when the caller has just read the key, or
        holds SQLite's write lock."""
        plan: Any = self._claim(op, reads_first=False) if isinstance(op, Claim) else self.plan_operation(op)
        return plan  # type: ignore[no-any-return]

    # Claim ----------------------------------------------------------------------------------

    def _claim(self, op: Claim, reads_first: bool = True) -> Plan[Statement, ClaimReply]:
        values = rows.claim_values(op)
        for _ in range(MAX_CLAIM_TRIES):
            reads_first = self.expects_record if self._dialect.insert_reads else reads_first
            try:
                reply = yield from self._try_claim(op, values, reads_first)
            except LockNotAvailable:
                return ClaimReply(False, None, 0)
            if reply is not None:
                return reply
        raise StoreUnavailable(f"the claim lost {MAX_CLAIM_TRIES} races in a row; the key is contended, try again")

    def _try_claim(self, op: Claim, values: dict[str, Any], reads_first: bool) -> Plan[Statement, ClaimReply | None]:
        """One try. None if another claim changed the record between two statements: start again."""
        found = yield from self._insert_or_read(op, values, reads_first)
        if found is None or found.granted:
            return found
        grant = decide_grant(found.record, op, found.now)
        if grant is None or grant is Grant.OWN:
            return found._replace(granted=grant is Grant.OWN)
        assert found.record is not None, "a missing record was inserted, or the claim was refused"
        name = "rebirth" if grant is Grant.REBIRTH else "takeover"
        taken = yield Statement(self.texts[name], values | rows.takeover_values(found.record, op))
        return _read_claim_reply(True, taken[0]) if taken else None

    def _insert_or_read(
        self, op: Claim, values: dict[str, Any], reads_first: bool
    ) -> Plan[Statement, ClaimReply | None]:
        if op.resumes:
            found = yield from self._lookup(Lookup(op.id, op.now))  # a resume never inserts
            return ClaimReply(False, found.record, found.now)
        if self._has_insert_or_read:
            # No row: another insert committed after our snapshot, so the record is neither ours nor missing (I1).
            both = yield Statement(self.texts["insert_or_read"], values)
            if not both:
                return None
            granted, moment, *columns = both[0]
            return ClaimReply(granted, build_new_record(op, moment) if granted else rows.read_record(columns), moment)
        # If a write takes the database's only write lock, a replay must not need it: read first, then insert.
        if reads_first:
            seen = yield from self._lookup(Lookup(op.id, op.now))
            self.expects_record = seen.record is not None
            if seen.record is not None:
                return ClaimReply(False, seen.record, seen.now)
        inserted = yield Statement(self.texts["insert"], values)
        self.expects_record = not inserted
        if inserted:
            moment = inserted[0][0] if op.now is None else op.now
            return ClaimReply(True, build_new_record(op, moment), moment)
        if reads_first:
            return None
        found = yield from self._lookup(Lookup(op.id, op.now))
        return ClaimReply(False, found.record, found.now) if found.record is not None else None

    # Fenced writes --------------------------------------------------------------------------

    def _fenced_write(self, op: Any) -> Plan[Statement, bool]:
        if (yield from self.apply_fenced(op)):
            return True
        if not isinstance(op, _RECOGNISABLE):
            return False
        # The write was refused, or it was done before and its reply was lost. The stored record shows which.
        found = yield from self._lookup(Lookup(op.id, op.now))
        return is_recognised(found.record, op)

    def apply_fenced(self, op: Any) -> Plan[Statement, bool]:
        """Send a fenced write; True if it changed the record now. A user's transaction needs exactly this: if it also
        accepted an advance that happened before, the rows of a step that ran twice would be committed twice."""
        name, values = _FENCED_VALUES[type(op)](op)
        values |= {"id": op.id, "attempt": op.fence.attempt, "token": op.fence.token, "now": op.now}
        return bool((yield Statement(self.texts[name], values)))

    # Reading and cleaning -------------------------------------------------------------------

    def _lookup(self, op: Lookup) -> Plan[Statement, LookupReply]:
        seen = yield Statement(self.texts["lookup"], {"id": op.id, "now": op.now}, writes=False)
        moment, *row = seen[0]
        return LookupReply(None if row[0] is None else rows.read_record(row), moment)

    def _reap(self, op: Reap) -> Plan[Statement, int]:
        values = {"limit": op.limit, "now": op.now, **namespace_values(op.namespace)}
        if self._has_reap_onward:
            return (yield from self._reap_onward(op, values))
        deleted = yield Statement(self.texts["reap"], values)
        return len(deleted)

    def _reap_onward(self, op: Reap, values: dict[str, Any]) -> Plan[Statement, int]:
        """Begin where the last batch ended. If too few are left there, begin once more at the start: records may have
        been locked then, or have expired out of turn."""
        count, onward = 0, self._reaped_to.pop(op.namespace, _BEFORE_ALL)
        while True:
            left = {**values, "limit": op.limit - count, "onward": onward}
            # Not prepared: a plan that was kept from a small table would scan all of a large one.
            deleted = yield Statement(self.texts["reap_onward"], left, prepared=False)
            count += len(deleted)
            if count >= op.limit:
                self._reaped_to[op.namespace] = max((expires for (expires,) in deleted), default=onward)
                return count
            if onward == _BEFORE_ALL:
                return count
            onward = _BEFORE_ALL

    def _list(self, op: List) -> Plan[Statement, Page]:
        few = op.only_open
        if few and op.examine:
            more = yield Statement(self.texts["list_open_count"], {"limit": op.max_sorted + 1}, writes=False)
            few = int(more[0][0]) <= op.max_sorted
        conditions, values = _list_conditions(op, few)
        if op.key is not None and self._dialect.finds_keys:
            conditions.append("key = :key")
            values["key"] = op.key
        stop = b""
        if op.examine and not (few or op.resting):
            seen = {"after": values["after"], "skip": op.examine - 1}
            stop = b"".join(bytes(row[0]) for row in (yield Statement(self.texts["list_stop"], seen, writes=False)))
        if stop:
            conditions.append("id <= :stop")
            values["stop"] = stop
        text = self._fill_list("list_lapsed" if few else "list", " AND ".join(conditions))
        found = yield Statement(text, values, writes=False)
        page, unreadable = read_page(found[: op.limit], rows.read_record, lambda row: bytes(row[0]))
        last = bytes(found[op.limit - 1][0]) if len(found) > op.limit else stop
        return Page(page, last.hex(), unreadable)

    def _fill_list(self, name: str, conditions: str) -> str:
        """The text with its conditions. They are few, and each text is built once."""
        text = self._lists.get((name, conditions))
        if text is None:
            text = self.texts[name].replace("{where}", self._dialect.fill(conditions, _NO_NAMES))
            self._lists[name, conditions] = text
        return text

    def _take(self, op: TakeJobs) -> Plan[Statement, tuple[StagedJob, ...]]:
        return job_plans.take(self.texts, op, self._fill)

    def _stats(self, op: Stats) -> Plan[Statement, StatsReply]:
        counted = yield Statement(self.texts["stats"], {"now": op.now, **namespace_values(op.namespace)}, writes=False)
        return StatsReply(*counted[0])

    def _backlog(self, op: Backlog) -> Plan[Statement, BacklogReply]:
        values = {"now": op.now, "limit": op.limit, **namespace_values(op.namespace)}
        bound = op.examine if op.namespace is not None else 0
        found = yield self._ask_backlog("backlog", "backlog_open_seen", values, bound)
        due = yield self._ask_backlog("backlog_reapable", "backlog_due_seen", values, bound)
        passed = bound > 0 and (yield from self._passes(op, bound))
        # MySQL counts in decimals.
        groups = tuple(sorted(OpenGroup(kind, target, *map(int, counts)) for kind, target, *counts in found))
        reapable, oldest_reapable, now = map(int, due[0])
        opened = sum(group.in_progress + group.uncertain for group in groups)
        truncated = passed or max(opened, reapable) >= op.limit
        return BacklogReply(groups, reapable, oldest_reapable, truncated, now)

    def _ask_backlog(self, name: str, source: str, values: dict[str, Any], bound: int) -> Statement:
        """One part of the backlog, of all records or of the first ones in the order of their index."""
        if not bound:
            return Statement(self.texts[name], values, writes=False)
        text = self.texts[name].replace(f"FROM {self._keys}\n", f"FROM {self.texts[source]}")
        return Statement(text, {**values, "examine": bound}, writes=False)

    def _passes(self, op: Backlog, bound: int) -> Plan[Statement, bool]:
        """Whether the store holds more of all applications than the bound of a backlog."""
        for name, values in (("list_open_count", {}), ("backlog_due_count", {"now": op.now})):
            counted = yield Statement(self.texts[name], {"limit": bound + 1, **values}, writes=False)
            if int(counted[0][0]) > bound:
                return True
        return False

    def _install(self, op: Install) -> Plan[Statement, str]:
        found = yield Statement(self.texts["install"], {}, writes=False)
        if not found:
            # The tables were created from a script, which cannot draw a name. The first caller does.
            yield Statement(self.texts["install_put"], {"value": secrets.token_hex(16)})
            found = yield Statement(self.texts["install"], {}, writes=False)
        return str(found[0][0])

    def lookup_commit(self, op: LookupCommit) -> Plan[Statement, bool | None]:
        """Whether a marked transaction was committed. None: it is still open, or this database cannot tell."""
        if "receipt_committed" not in self.texts:
            return None
        values = {"began": op.began, "marker": op.marker}
        found = yield Statement(self.texts["receipt_committed"], values, writes=False)
        return None if found[0][0] is None else bool(found[0][0])

    def forget_marker(self, op: ForgetMarker) -> Plan[Statement, None]:
        """Where transactions are marked by a row."""
        if op.marker and "receipt_unmark" in self.texts:
            yield Statement(self.texts["receipt_unmark"], {"marker": op.marker})


_NO_NAMES = TableNames("", "", "")


def _job_plan(plan: Callable[[dict[str, str], Any], Any]) -> Callable[[SqlPlans, Any], Any]:
    return lambda plans, op: plan(plans.texts, op)


def _read_claim_reply(granted: bool, row: Iterable[Any]) -> ClaimReply:
    moment, *columns = row
    return ClaimReply(bool(granted), rows.read_record(columns), moment)


def namespace_values(namespace: str | None) -> dict[str, Any]:
    """Values for one namespace, or for all of them if it is None."""
    return {"namespace": namespace or "", "every": int(namespace is None)}


def _list_conditions(op: List, few: bool) -> tuple[list[str], dict[str, Any]]:
    """`few`: the list is of open records, and is read by their index. Read in the order of ids, a million finished
    records would be read for them; if the open ones are many, sorting all of them takes as long."""
    values: dict[str, Any] = {"after": read_id_cursor(op.cursor), "limit": op.limit + 1, "now": op.now}
    conditions = ["id > :after"]
    for name in ("namespace", "kind", "scope"):
        value = getattr(op, name)
        if value is not None:
            conditions.append(f"{name} = :{name}")
            values[name] = value
    if op.state is not None:
        # A literal, not a parameter, so that the planner can use a partial index.
        conditions.append(f"state = '{op.state.value}'")
    if op.state is State.RELEASED:
        # `+ 0` keeps planners from the index of what expires: it holds everything that is finished.
        conditions.append("expires + 0 > {now}")
    if few:
        # The condition of the index of open records, beside the wanted one.
        conditions.append("state IN ('claimed', 'uncertain')")
    if op.lapsed:
        conditions.append("state = 'claimed' AND lease_until <= {now}")
    if op.resting:
        conditions.append("state = 'released' AND point <> ''")
    return conditions, values


def _resolve_values(op: Resolve) -> tuple[str, dict[str, Any]]:
    name = "resolve_released" if op.answer is None else "resolve_completed"
    return name, {"note": op.note, **rows.answer_values(op.answer)}


_FENCED_VALUES: dict[type[Any], Callable[[Any], tuple[str, dict[str, Any]]]] = {
    Renew: lambda op: ("renew", {"lease": op.lease}),
    Advance: lambda op: (
        "advance",
        {
            "number": op.number,
            "point": op.point,
            "progress": op.progress,
            "on_lapse": op.on_lapse,
            "lease": op.lease,
        },
    ),
    Complete: lambda op: ("complete", rows.answer_values(op.answer)),
    Release: lambda op: ("release", {"note": op.note}),
    Withdraw: lambda op: ("withdraw", {"note": op.note}),
    Suspect: lambda op: ("suspect", {"note": op.note, "lapsed_only": int(op.lapsed_only)}),
    Resolve: _resolve_values,
    Forget: lambda op: ("forget", {}),
}

_PLANS: dict[type[Any], Callable[[SqlPlans, Any], Any]] = {
    **{kind: _job_plan(plan) for kind, plan in job_plans.PLANS.items()},
    TakeJobs: SqlPlans._take,
    Claim: SqlPlans._claim,
    Lookup: SqlPlans._lookup,
    Reap: SqlPlans._reap,
    List: SqlPlans._list,
    Stats: SqlPlans._stats,
    Backlog: SqlPlans._backlog,
    Install: SqlPlans._install,
    LookupCommit: SqlPlans.lookup_commit,
    ForgetMarker: SqlPlans.forget_marker,
    **dict.fromkeys(_FENCED_VALUES, SqlPlans._fenced_write),
}


def sort_by_id(ops: Iterable[Op[Any]]) -> list[tuple[int, Op[Any]]]:
    """Operations with their positions, sorted by id, so that two batches lock rows in the same order."""
    return sorted(enumerate(ops), key=lambda item: getattr(item[1], "id", b""))


__all__ = ["Fenced", "LockNotAvailable", "RetryNow", "SqlPlans", "Statement", "sort_by_id"]
