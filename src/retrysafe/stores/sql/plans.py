"""Each operation as a plan: which statements to send, and how to read what comes back. Written once for both
colours and for all SQL stores; who sends them (our pool, the user's own connection) is not known here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from retrysafe.core.jobs import StagedJob, TakeJobs
from retrysafe.core.moves import Grant, build_new_record, decide_grant, is_recognised
from retrysafe.core.ops import (
    Advance,
    Claim,
    ClaimReply,
    Complete,
    Fenced,
    Forget,
    Install,
    List,
    Lookup,
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
from retrysafe.stores.base import Plan, read_id_cursor, read_page
from retrysafe.stores.sql import job_plans, rows
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import TableNames

R = TypeVar("R")

MAX_CLAIM_TRIES = 20
"""How often a claim looks again when others move the record between its statements. Each round somebody won."""

_RECOGNISABLE = (Advance, Complete, Release, Withdraw, Suspect, Resolve)


class LockNotAvailable(Exception):
    """Raised by an executor: another transaction holds the row and would not let go in time (I28)."""


class SqlPlans:
    """The statements of one installation."""

    def __init__(self, dialect: Dialect, names: TableNames) -> None:
        self._dialect = dialect
        self.texts = dialect.load(names)
        self._fill = job_plans.build_fill(dialect)
        self._in_one = "insert_or_read" in self.texts

    def plan_operation(self, op: Op[R]) -> Plan[Statement, R]:
        """The plan of an operation."""
        plan: Plan[Statement, R] = _PLANS[type(op)](self, op)
        return plan

    def plan_without_read(self, op: Op[R]) -> Plan[Statement, R]:
        """The plan of an operation for who has looked already, or holds the store's one write lock: a new key needs no
        look at what is not there."""
        plan: Any = self._claim(op, reads_first=False) if isinstance(op, Claim) else self.plan_operation(op)
        return plan  # type: ignore[no-any-return]

    # Claim ----------------------------------------------------------------------------------

    def _claim(self, op: Claim, reads_first: bool = True) -> Plan[Statement, ClaimReply]:
        values = rows.claim_values(op)
        for _ in range(MAX_CLAIM_TRIES):
            try:
                reply = yield from self._try_claim(op, values, reads_first)
            except LockNotAvailable:
                return ClaimReply(False, None, 0)
            if reply is not None:
                return reply
        raise StoreUnavailable(f"the claim lost {MAX_CLAIM_TRIES} races in a row; the key is contended, try again")

    def _try_claim(self, op: Claim, values: dict[str, Any], reads_first: bool) -> Plan[Statement, ClaimReply | None]:
        """One round: None when somebody else moved the record between two statements, so look again."""
        found = yield from self._insert_or_read(op, values, reads_first)
        if found is None or found.granted:
            return found
        grant = decide_grant(found.record, op, found.now)
        if grant is None or grant is Grant.OWN:
            return found._replace(granted=grant is Grant.OWN)
        assert found.record is not None, "what is not there is born, or not to be had"
        name = "rebirth" if grant is Grant.REBIRTH else "takeover"
        taken = yield Statement(self.texts[name], values | rows.takeover_values(found.record, op))
        return _read_claim_reply(True, taken[0]) if taken else None

    def _insert_or_read(
        self, op: Claim, values: dict[str, Any], reads_first: bool
    ) -> Plan[Statement, ClaimReply | None]:
        if op.resumes:
            there = yield from self._lookup(Lookup(op.id, op.now))  # it goes on or is refused: it never inserts
            return ClaimReply(False, there.record, there.now)
        if self._in_one:
            # No row at all means: another insert committed after our snapshot. Neither ours nor absent (I1).
            both = yield Statement(self.texts["insert_or_read"], values)
            if not both:
                return None
            granted, moment, *columns = both[0]
            return ClaimReply(granted, build_new_record(op, moment) if granted else rows.read_record(columns), moment)
        # Where a write takes the one lock there is, a replay must not ask for it: read first, then insert.
        if reads_first:
            seen = yield from self._lookup(Lookup(op.id, op.now))
            if seen.record is not None:
                return ClaimReply(False, seen.record, seen.now)
        inserted = yield Statement(self.texts["insert"], values)
        if inserted:
            return ClaimReply(True, build_new_record(op, inserted[0][0]), inserted[0][0])
        if reads_first:
            return None
        there = yield from self._lookup(Lookup(op.id, op.now))
        return ClaimReply(False, there.record, there.now) if there.record is not None else None

    # Fenced writes --------------------------------------------------------------------------

    def _fenced_write(self, op: Any) -> Plan[Statement, bool]:
        if (yield from self.apply_fenced(op)):
            return True
        if not isinstance(op, _RECOGNISABLE):
            return False
        # Refused, or done before and the reply was lost? What is stored tells; it can only be read now.
        found = yield from self._lookup(Lookup(op.id, op.now))
        return is_recognised(found.record, op)

    def apply_fenced(self, op: Any) -> Plan[Statement, bool]:
        """Whether a fenced write was carried out just now. Inside a user's transaction only this counts: were an
        advance recognised there, the rows of a step that ran twice would be committed twice."""
        name, values = _FENCED_VALUES[type(op)](op)
        values |= {"id": op.id, "attempt": op.fence.attempt, "token": op.fence.token, "now": op.now}
        return bool((yield Statement(self.texts[name], values)))

    # Reading and cleaning -------------------------------------------------------------------

    def _lookup(self, op: Lookup) -> Plan[Statement, LookupReply]:
        seen = yield Statement(self.texts["lookup"], {"id": op.id, "now": op.now}, writes=False)
        moment, *row = seen[0]
        return LookupReply(None if row[0] is None else rows.read_record(row), moment)

    def _reap(self, op: Reap) -> Plan[Statement, int]:
        gone = yield Statement(self.texts["reap"], {"limit": op.limit, "now": op.now, **namespace_values(op.namespace)})
        return len(gone)

    def _list(self, op: List) -> Plan[Statement, Page]:
        conditions, values = _list_conditions(op)
        where = self._dialect.fill(" AND ".join(conditions), _NO_NAMES)
        text = self.texts["list_lapsed" if op.lapsed else "list"].replace("{where}", where)
        found = yield Statement(text, values, writes=False)
        page, unreadable = read_page(found[: op.limit], rows.read_record, lambda row: bytes(row[0]))
        return Page(page, bytes(found[op.limit - 1][0]).hex() if len(found) > op.limit else "", unreadable)

    def _take(self, op: TakeJobs) -> Plan[Statement, tuple[StagedJob, ...]]:
        return job_plans.take(self.texts, op, self._fill)

    def _stats(self, op: Stats) -> Plan[Statement, StatsReply]:
        counted = yield Statement(self.texts["stats"], {"now": op.now, **namespace_values(op.namespace)}, writes=False)
        return StatsReply(*counted[0])

    def _install(self, op: Install) -> Plan[Statement, str]:
        found = yield Statement(self.texts["install"], {}, writes=False)
        if not found:
            # The tables were made from a script, which cannot draw a name. The first to ask does.
            yield Statement(self.texts["install_put"], {"value": secrets.token_hex(16)})
            found = yield Statement(self.texts["install"], {}, writes=False)
        return str(found[0][0])


_NO_NAMES = TableNames("", "", "")


def _job_plan(plan: Callable[[dict[str, str], Any], Any]) -> Callable[[SqlPlans, Any], Any]:
    return lambda plans, op: plan(plans.texts, op)


def _read_claim_reply(granted: bool, row: Iterable[Any]) -> ClaimReply:
    moment, *columns = row
    return ClaimReply(bool(granted), rows.read_record(columns), moment)


def namespace_values(namespace: str | None) -> dict[str, Any]:
    """Of one application, or of every one."""
    return {"namespace": namespace or "", "every": int(namespace is None)}


def _list_conditions(op: List) -> tuple[list[str], dict[str, Any]]:
    values: dict[str, Any] = {"after": read_id_cursor(op.cursor), "limit": op.limit + 1, "now": op.now}
    conditions = ["id > :after"]
    for name in ("namespace", "kind", "scope"):
        value = getattr(op, name)
        if value is not None:
            conditions.append(f"{name} = :{name}")
            values[name] = value
    if op.state is not None:
        # The literal, not a parameter: the planner then sees that a partial index will do.
        conditions.append(f"state = '{op.state.value}'")
    if op.state is State.RELEASED:
        conditions.append("expires > {now}")
    if op.lapsed:
        # Both: the first is what the index of open records says of itself, the second is what is wanted.
        conditions.append("state IN ('claimed', 'uncertain') AND state = 'claimed' AND lease_until <= {now}")
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
    Install: SqlPlans._install,
    **dict.fromkeys(_FENCED_VALUES, SqlPlans._fenced_write),
}


def sort_by_id(ops: Iterable[Op[Any]]) -> list[tuple[int, Op[Any]]]:
    """Operations with their places, sorted by id: two batches that meet in one transaction each cannot deadlock."""
    return sorted(enumerate(ops), key=lambda item: getattr(item[1], "id", b""))


__all__ = ["Fenced", "LockNotAvailable", "SqlPlans", "Statement", "sort_by_id"]
