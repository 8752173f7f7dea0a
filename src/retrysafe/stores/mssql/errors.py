"""What SQL Server and DB-Lib say, read by number: did the server say no, or did it go silent?"""

from __future__ import annotations

from retrysafe.errors import RetrySafeError, SchemaMissing, StoreError, StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.mssql.talking import number_of
from retrysafe.stores.sql.attempts import Again, Words
from retrysafe.stores.sql.plans import Held

AGAIN = frozenset({1205, 3960, 3961, 1204, 41302, 41305, 41325})
"""Nothing happened, and the same thing may work now: deadlock victim, snapshot conflict, no locks left."""

LOCK_WAIT = frozenset({1222})
MISSING = frozenset({207, 208, 2812})
"""No such column, table, procedure."""

NO_DATABASE = frozenset({911, 916, 4060, 18456, 18452})
READ_ONLY = frozenset({3906, 3908, 976, 978, 982, 983})
"""Read-only, or a replica that takes no connections."""

NO_ROOM = frozenset({701, 1101, 1105, 8645, 8651, 9002})
_DB_LIB = range(20000, 20200)
"""DB-Lib's own numbers: the conversation broke (20003 time-out, 20004 read, 20006 write, 20047 dead)."""
SILENT = frozenset({233, 596, 6002, 6005, 10053, 10054, 10060, 10061, 17142, 17143})
"""The session was killed, the server is shutting down, the network failed: it may have happened."""


def meaning(error: Exception, url: str, batch: bool = False) -> Exception:
    """The error as one of ours; Held and Again stay inside the store."""
    if isinstance(error, RetrySafeError | Held | Again):
        return error
    if isinstance(error, UnicodeError):
        return StoreError(f"a value of this operation cannot be stored in SQL Server: {_line(error)}; nothing was done")
    number = number_of(error)
    if number is None:
        broke = isinstance(error, OSError | EOFError) or _of_driver(error)
        return StoreUnclear(f"the connection to SQL Server broke: {_line(error)}") if broke else error
    if batch and number in LOCK_WAIT:
        return BatchRefused("a key of this batch is held by an open transaction; send the operations one by one")
    return _said(number, error, url)


def _said(number: int, error: Exception, url: str) -> Exception:
    if number in AGAIN:
        return Again(_line(error))
    if number in LOCK_WAIT:
        return Held(_line(error))
    if number in MISSING:
        return SchemaMissing(f"SQL Server says ({number}): {_line(error)}", url)
    if silent(number):
        return StoreUnclear(f"the connection to SQL Server broke ({number}): {_line(error)}")
    if number in READ_ONLY:
        return StoreUnavailable(
            f"SQL Server is read-only here ({number}: {_line(error)}; a secondary?); point the URL at the primary"
        )
    if number in NO_ROOM or number in NO_DATABASE:
        return StoreUnavailable(f"SQL Server has no room or is not ready ({number}): {_line(error)}")
    return StoreError(f"SQL Server refused ({number}): {_line(error)}")


def silent(number: int) -> bool:
    """Whether the conversation broke."""
    return number in SILENT or number in _DB_LIB


def unreachable(error: Exception) -> StoreUnavailable:
    """No connection was made, so nothing can have happened."""
    number = number_of(error)
    told = f"{number}: {_line(error)}" if number else _line(error)
    kind = StoreUnreachable if not number or silent(number) else StoreUnavailable  # it may have said no
    return kind(f"no connection to SQL Server ({told}); is it up, and are host, user and database right?")


def held_elsewhere() -> StoreUnavailable:
    return StoreUnavailable(
        "the key's row is held by an open transaction for longer than LOCK_TIMEOUT; nothing was done: "
        "end that transaction, and send the operation again"
    )


def too_many_undone(tries: int) -> StoreUnavailable:
    return StoreUnavailable(f"SQL Server chose this as the deadlock victim {tries} times in a row; try again")


WORDS = Words(held_elsewhere, too_many_undone)


def no_connection_free(seconds: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"no connection to SQL Server came free within {seconds:g} s; is it answering, is ?pool= large enough?"
    )


def closed() -> StoreUnavailable:
    return StoreUnavailable("this store was closed; open a new one")


def _of_driver(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] == "pymssql"


def _line(error: Exception) -> str:
    """The message's first line, without the number in front of it."""
    said = error.args[0] if error.args else ""
    if isinstance(said, tuple) and len(said) > 1:
        said = said[1]
    elif len(error.args) > 1:
        said = error.args[1]
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__
