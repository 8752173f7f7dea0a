"""How a statement is said to MySQL, whoever says it. No I/O here.

A text is one statement or several, parted by `;`. The reply is what the last one says: its rows, or a row for each
row it changed. One that is marked `or nothing` takes "that is there already" for an answer: nothing was added.
INSERT IGNORE would do the same, and swallow everything else that is wrong with the row too.

Our own connections send all the steps of many statements in one packet; a user's connection takes them one by one.
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
"""The row is there already, or the column, or the key: an ALTER commits by itself, so a migration may meet its own."""
MAX_PACKET_CHARS = 1 << 20
"""Characters that go in one packet, about: far below the smallest max_allowed_packet in use."""
_MAX_CHAIN_DEPTH = 8

BEGIN, COMMIT, ROLLBACK = Statement("START TRANSACTION", {}), Statement("COMMIT", {}), Statement("ROLLBACK", {})


@lru_cache(maxsize=1024)
def split_steps(sql: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in sql.split(";"))


def error_number(error: BaseException) -> int | None:
    """The server's or the driver's error number, wherever in the chain it stands (SQLAlchemy: `orig`, Django:
    `__cause__`)."""
    at: BaseException | None = error
    for _ in range(_MAX_CHAIN_DEPTH):
        if at is None:
            return None
        if at.args and isinstance(at.args[0], int) and _is_from_driver(at):
            return at.args[0]
        orig = getattr(at, "orig", None)
        at = orig if isinstance(orig, BaseException) and orig is not at else at.__cause__
    return None


def _is_from_driver(error: BaseException) -> bool:
    return any(base.__module__.partition(".")[0] in _DRIVERS for base in type(error).__mro__)


_DRIVERS = frozenset({"pymysql", "asyncmy", "aiomysql", "MySQLdb"})


def is_allowed_duplicate(error: BaseException, step: str) -> bool:
    """Whether this is an `or nothing` that got nothing."""
    return OR_NOTHING in step and error_number(error) in DUPLICATE_CODES


def read_rows(rows: Iterable[Sequence[Any]] | None, changed: int) -> Rows:
    return [(1,)] * changed if rows is None else [tuple(row) for row in rows]


# One by one -------------------------------------------------------------------------------------


def plan_steps(statement: Statement) -> Plan[str, Rows]:
    """Yields each step and is sent its rows."""
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
    """What came back for a packet: the rows of each step until one failed."""

    answers: list[Rows]
    error: Exception | None


PacketPlan = Generator[str, PacketReply, list[Rows]]
Mogrify = Callable[[str, Mapping[str, Any] | None], str]


def plan_packets(statements: Sequence[Statement], mogrify: Mogrify) -> PacketPlan:
    """Yields packets and is sent what was heard; the reply has the rows of each statement."""
    each = [(step, statement) for statement in statements for step in split_steps(statement.sql)]
    texts = [mogrify(step, statement.values or None) for step, statement in each]
    answers: list[Rows] = []
    while len(answers) < len(texts):
        heard = yield ";".join(_take_packet(texts, len(answers)))
        answers.extend(heard.answers)
        if heard.error is not None:
            if not is_allowed_duplicate(heard.error, each[len(answers)][0]):
                raise heard.error
            answers.append([])
    ends = accumulate(len(split_steps(statement.sql)) for statement in statements)
    return [answers[end - 1] for end in ends]


def _take_packet(texts: Sequence[str], start: int) -> list[str]:
    """As many as fit, but at least one."""
    end, size = start, 0
    while end < len(texts) and (end == start or size + len(texts[end]) <= MAX_PACKET_CHARS):
        size += len(texts[end])
        end += 1
    return list(texts[start:end])


# Many plans -------------------------------------------------------------------------------------


def merge_plans(plans: Sequence[Plan[Statement, Any]]) -> Plan[Sequence[Statement], list[Any]]:
    """Many plans as one: what each of them wants to say next goes together, until all have their reply."""
    replies: list[Any] = [None] * len(plans)
    waiting: list[tuple[int, Statement]] = []
    for place, plan in enumerate(plans):
        _step_plan(plan, None, place, waiting, replies)
    while waiting:
        said = yield [statement for _, statement in waiting]
        asked, waiting = waiting, []
        for (place, _), rows in zip(asked, said, strict=True):
            _step_plan(plans[place], rows, place, waiting, replies)
    return replies


def _step_plan(
    plan: Plan[Statement, Any], rows: Any, place: int, waiting: list[tuple[int, Statement]], replies: list[Any]
) -> None:
    try:
        waiting.append((place, plan.send(rows)))
    except StopIteration as done:
        replies[place] = done.value
