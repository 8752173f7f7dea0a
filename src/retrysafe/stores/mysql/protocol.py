"""How statements are sent to MySQL, and how their results are read. No I/O here.

A text is one SQL statement or several, separated by `;`: its steps. The result is that of the last step: its rows, or
one row for each row it changed. A step that is marked `/* or nothing */` may fail with a duplicate key: then it added
nothing. INSERT IGNORE would do the same, but it also ignores every other error of the row.

The store's own connections send all steps of many statements in one packet; a user's connection sends them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Statement

Rows = Sequence[Sequence[Any]]

OR_NOTHING = "/* or nothing */"
DUPLICATE_CODES = frozenset({1062, 1060, 1061})
"""The row exists, or the column, or the index. An ALTER commits by itself, so a repeated migration finds its own."""
MAX_PACKET_CHARS = 1 << 20
"""Approximate characters in one packet: far below the smallest max_allowed_packet in use."""
_MAX_CHAIN_DEPTH = 8

BEGIN, COMMIT, ROLLBACK = Statement("START TRANSACTION", {}), Statement("COMMIT", {}), Statement("ROLLBACK", {})


@lru_cache(maxsize=1024)
def split_steps(sql: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in sql.split(";"))


def error_number(error: BaseException) -> int | None:
    """The error number of the server or the driver, also of a wrapped error (SQLAlchemy: `orig`, Django:
    `__cause__`)."""
    current: BaseException | None = error
    for _ in range(_MAX_CHAIN_DEPTH):
        if current is None:
            return None
        if current.args and isinstance(current.args[0], int) and _is_from_driver(current):
            return current.args[0]
        orig = getattr(current, "orig", None)
        current = orig if isinstance(orig, BaseException) and orig is not current else current.__cause__
    return None


def _is_from_driver(error: BaseException) -> bool:
    return any(base.__module__.partition(".")[0] in _DRIVERS for base in type(error).__mro__)


_DRIVERS = frozenset({"pymysql", "asyncmy", "aiomysql", "MySQLdb"})


def is_allowed_duplicate(error: BaseException, step: str) -> bool:
    """True if a step marked `/* or nothing */` failed with a duplicate key: the row exists, which is expected."""
    return OR_NOTHING in step and error_number(error) in DUPLICATE_CODES


def read_rows(rows: Iterable[Sequence[Any]] | None, changed: int, insert_id: int | None = None) -> Rows:
    """The rows of a read; for a write, one row for each row that it changed, with what the statement passed to
    LAST_INSERT_ID."""
    return [(insert_id or 1,)] * changed if rows is None else [tuple(row) for row in rows]


# One by one -------------------------------------------------------------------------------------


def plan_steps(statement: Statement) -> Plan[str, Rows]:
    """Yield each step, receive its rows, and return those of the last."""
    last: Rows = []
    for step in split_steps(statement.sql):
        try:
            last = yield step
        except Exception as error:
            if not is_allowed_duplicate(error, step):
                raise
            last = []
    return last


# Many in a packet -------------------------------------------------------------------------------


class PacketReply(NamedTuple):
    """The reply to a packet: the rows of each step, up to the one that failed."""

    answers: list[Rows]
    error: Exception | None


PacketPlan = Generator[str, PacketReply, list[Rows]]
Mogrify = Callable[[str, Mapping[str, Any] | None], str]


MAX_HEX_BYTES = 1024
"""The driver writes longer values: in hexadecimal they have twice the length, and the size of a packet is limited."""


def build_mogrify(escape: Callable[[Any], str]) -> Mogrify:
    """A function that writes values into a text. `escape` is the driver's. asyncmy would escape bytes one by one, and
    those of a claim cost more than all the rest of it."""

    def mogrify(text: str, values: Mapping[str, Any] | None) -> str:
        if not values:
            return text
        literals = {}
        for name, value in values.items():
            kind = type(value)
            if kind is int:
                literals[name] = str(value)
            elif value is None:
                literals[name] = "NULL"
            elif kind is bytes and len(value) <= MAX_HEX_BYTES:
                literals[name] = f"x'{value.hex()}'"
            else:
                literals[name] = escape(value)
        return text % literals

    return mogrify


def plan_packets(statements: Sequence[Statement], mogrify: Mogrify) -> PacketPlan:
    """Yield packets, receive their replies, and return the rows of each statement."""
    if len(statements) == 1 and len(steps := split_steps(statements[0].sql)) == 1:
        return (yield from _plan_single(steps[0], mogrify(steps[0], statements[0].values or None)))
    each = [(step, statement) for statement in statements for step in split_steps(statement.sql)]
    texts = [mogrify(step, statement.values or None) for step, statement in each]
    answers: list[Rows] = []
    while len(answers) < len(texts):
        reply = yield ";".join(_take_packet(texts, len(answers)))
        answers.extend(reply.answers)
        if reply.error is not None:
            if not is_allowed_duplicate(reply.error, each[len(answers)][0]):
                raise reply.error
            answers.append([])
    ends = accumulate(len(split_steps(statement.sql)) for statement in statements)
    return [answers[end - 1] for end in ends]


def _plan_single(step: str, text: str) -> PacketPlan:
    """The usual case: one statement of one step."""
    reply = yield text
    if reply.error is None:
        return reply.answers
    if not is_allowed_duplicate(reply.error, step):
        raise reply.error
    return [[]]


def plan_packet(texts: Sequence[str]) -> PacketPlan:
    """Yield one packet of statements that have their values in them, and return the rows of each."""
    reply = yield ";".join(texts)
    if reply.error is not None:
        raise reply.error
    return reply.answers


def _take_packet(texts: Sequence[str], start: int) -> list[str]:
    """As many texts as fit into one packet, but at least one."""
    end, size = start, 0
    while end < len(texts) and (end == start or size + len(texts[end]) <= MAX_PACKET_CHARS):
        size += len(texts[end])
        end += 1
    return list(texts[start:end])


# Many plans -------------------------------------------------------------------------------------


def merge_plans(plans: Sequence[Plan[Statement, Any]]) -> Plan[Sequence[Statement], list[Any]]:
    """Run many plans as one: the next statements of all plans are sent together, until each plan has its reply."""
    replies: list[Any] = [None] * len(plans)
    waiting: list[tuple[int, Statement]] = []
    for place, plan in enumerate(plans):
        _step_plan(plan, None, place, waiting, replies)
    while waiting:
        results = yield [statement for _, statement in waiting]
        sent, waiting = waiting, []
        for (place, _), rows in zip(sent, results, strict=True):
            _step_plan(plans[place], rows, place, waiting, replies)
    return replies


def _step_plan(
    plan: Plan[Statement, Any], rows: Any, place: int, waiting: list[tuple[int, Statement]], replies: list[Any]
) -> None:
    try:
        waiting.append((place, plan.send(rows)))
    except StopIteration as done:
        replies[place] = done.value
