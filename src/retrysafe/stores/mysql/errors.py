"""What MySQL, MariaDB and their drivers raise, read: did the server say no, or did it go silent? Read by number, so
that no driver is imported here: PyMySQL and asyncmy use the same ones.
"""

from __future__ import annotations

from retrysafe.errors import (
    RetrySafeError,
    SchemaMissing,
    StoreError,
    StoreUnavailable,
    StoreUnclear,
    StoreUnreachable,
    UsageError,
)
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.mysql.talking import number_of
from retrysafe.stores.sql.attempts import Again, Words
from retrysafe.stores.sql.plans import Held

AGAIN = frozenset({1213, 1020, 1614, 3101})
"""Nothing happened, and the same thing may work now: deadlock, changed since it was read, rolled back by the server."""

LOCK_WAIT = frozenset({1205, 3572})
MISSING = frozenset({1146, 1054, 1049})
"""No such table, column, database."""

SILENT = frozenset({1053, 1152, 1158, 1159, 1160, 1161, 1180, 1184, 1317, 1927, 3169, 4031})
"""Shutting down, connection killed, the network failed, an error at the commit: it may have happened."""

READ_ONLY = frozenset({1290, 1792, 1836, 4090})
NO_ROOM = frozenset({1021, 1037, 1038, 1040, 1041, 1114, 1135, 1203, 1226, 3675})
_CLIENT = range(2000, 3000)
"""The driver's own numbers: the conversation broke (2006, 2013, 2014, 2055)."""


def meaning(error: Exception, url: str, batch: bool = False) -> Exception:
    """The error as one of ours; Held and Again stay inside the store.

    In a batch a held row spoils the transaction for everybody in it, so it is no answer to one claim there.
    """
    if isinstance(error, RetrySafeError | Held | Again):
        return error
    if isinstance(error, UnicodeError):
        return unstorable(error)
    number = number_of(error)
    if number is None:
        broke = isinstance(error, OSError | EOFError) or _of_driver(error)
        return StoreUnclear(f"the connection to MySQL broke: {_line(error)}") if broke else error
    if batch and number in LOCK_WAIT:
        return BatchRefused("a key of this batch is held by an open transaction; send the operations one by one")
    return _said(number, error, url)


def _said(number: int, error: Exception, url: str) -> Exception:
    """The server answered, or the driver knows what went wrong."""
    if number in AGAIN:
        return Again(_line(error))
    if number in LOCK_WAIT:
        return Held(_line(error))
    if number in MISSING:
        return SchemaMissing(f"MySQL says: {_line(error)}", url)
    if silent(number):
        return StoreUnclear(f"the connection to MySQL broke ({number}): {_line(error)}")
    if number in READ_ONLY:
        return StoreUnavailable(f"MySQL is read-only here ({number}; a replica?); point the URL at the source")
    if number in NO_ROOM:
        return StoreUnavailable(f"MySQL has no room or failed ({number}): {_line(error)}")
    if number == 1153:
        fix = "raise max_allowed_packet, or lower max_answer in the policy"
        return StoreError(f"MySQL refused ({number}): {_line(error)}; nothing was done: {fix}")
    return StoreError(f"MySQL refused ({number}): {_line(error)}")


def silent(number: int) -> bool:
    """Whether the conversation broke (0: on a connection that was closed)."""
    return number in SILENT or number in _CLIENT or number == 0


def unreachable(error: Exception) -> StoreUnavailable:
    """No connection was made, so nothing can have happened."""
    number = number_of(error)
    told = f"{number}: {_line(error)}" if number else _line(error)
    kind = StoreUnreachable if not number or silent(number) else StoreUnavailable  # it may have said no
    return kind(f"no connection to MySQL ({told}); is it up, and are host, user and database right?")


def swallowed(driver: str) -> UsageError:
    """A write would not say how many rows it matched, and a packet would be refused."""
    return UsageError(
        "the function that connects to MySQL must hand on the settings it is given: "
        f"def connect(**settings): return {driver}.connect(host=…, **settings)"
    )


def unstorable(error: Exception) -> StoreError:
    """The driver cannot write this value (half a surrogate pair): nothing was sent."""
    return StoreError(f"a value of this operation cannot be stored in MySQL: {_line(error)}; nothing was done")


def held_elsewhere() -> StoreUnavailable:
    """A lock timeout that no plan has an answer to: only claims may be Busy."""
    return StoreUnavailable(
        "the key's row is held by an open transaction for longer than innodb_lock_wait_timeout; nothing was done: "
        "end that transaction, and send the operation again"
    )


def too_many_undone(tries: int) -> StoreUnavailable:
    return StoreUnavailable(f"MySQL answered {tries} deadlocks in a row; try again")


WORDS = Words(held_elsewhere, too_many_undone)


def no_connection_free(seconds: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"no connection to MySQL came free within {seconds:g} s; is it answering, is ?pool= large enough?"
    )


def closed() -> StoreUnavailable:
    return StoreUnavailable("this store was closed; open a new one")


def _of_driver(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("pymysql", "asyncmy")


def _line(error: Exception) -> str:
    """The message, without the number in front of it."""
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__
