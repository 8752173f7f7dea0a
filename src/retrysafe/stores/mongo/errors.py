"""What pymongo raises, read: did the server say no, or did it go silent?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bson.errors import BSONError, InvalidDocument
from pymongo import errors

from retrysafe.errors import RetrySafeError, StoreError, StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.stores.mongo.plans import LockNotAvailable, WriteConflict

WRITE_CONFLICT_CODES = frozenset({11000, 112, 24, 251})
"""Duplicate key, write conflict, lock timeout, no such transaction any more: nothing was done."""
MAX_TIME_EXPIRED_CODE = 50
NOT_PRIMARY_CODES = frozenset({10107, 13435, 13436, 10058})
"""It is no primary, and said so before it did anything."""
INTERRUPTED_CODES = frozenset({6, 7, 89, 91, 189, 262, 9001, 11600, 11601, 11602})
"""It stepped down, shut down or lost its peers in the middle: it may have happened."""
TOO_LARGE_CODES = frozenset({10334, 17419, 17420, 17280})
NO_REPLICA_SET_CODES = frozenset({20, 76, 123})

_REFUSALS = {
    13: "this user may not do that: it needs the role readWrite on the database (docs/howto/mongodb.md)",
    18: "it does not accept this user or password; correct them in the URL, and see whether it wants authSource=",
    8000: "it does not accept this user or password; correct them in the URL",
    14031: "its disk is full; make room on it",
}


def translate_error(error: Exception) -> Exception:
    """The error as one of ours; Held and Met stay inside the store."""
    if isinstance(error, RetrySafeError | LockNotAvailable | WriteConflict):
        return error
    if isinstance(error, errors.ServerSelectionTimeoutError | errors.WaitQueueTimeoutError):
        kind = StoreUnreachable if isinstance(error, errors.ServerSelectionTimeoutError) else StoreUnavailable
        return kind(f"no connection to MongoDB ({_first_line(error)}): nothing was done; is it up?")
    if isinstance(error, errors.OperationFailure | errors.NotPrimaryError) and isinstance(error.details, Mapping):
        return _translate_reply(_error_code(error), error)
    if isinstance(error, errors.ConnectionFailure):
        return StoreUnclear(f"the connection to MongoDB broke: {_first_line(error)}")
    if isinstance(error, errors.DocumentTooLarge | InvalidDocument | BSONError | UnicodeError | OverflowError):
        return unstorable_value_error(error)
    if isinstance(error, errors.PyMongoError):
        return StoreError(f"MongoDB's driver refused: {_first_line(error)}")
    return error


def _error_code(error: errors.PyMongoError) -> int:
    code = getattr(error, "code", None)
    details = getattr(error, "details", None)
    if code is None and isinstance(details, Mapping):
        code = details.get("code")
    return code if isinstance(code, int) else 0


def _translate_reply(code: int, error: Exception) -> Exception:
    """The server answered."""
    if code in WRITE_CONFLICT_CODES:
        return WriteConflict(_first_line(error))
    if code == MAX_TIME_EXPIRED_CODE:
        return LockNotAvailable(_first_line(error))
    if code in NOT_PRIMARY_CODES:
        return StoreUnavailable(
            f"this MongoDB is not the primary ({code}); give all members and replicaSet= in the URL"
        )
    if code in INTERRUPTED_CODES or isinstance(error, errors.NotPrimaryError):
        return StoreUnclear(
            f"MongoDB was interrupted ({code}): {_first_line(error)}; send it again and learn how it ended"
        )
    if code in TOO_LARGE_CODES:
        return unstorable_value_error(error)
    if code in NO_REPLICA_SET_CODES:
        return StoreError(
            f"MongoDB refused ({code}): {_first_line(error)}; it must run as a replica set, of one member at least"
        )
    why = _REFUSALS.get(code, "nothing was done")
    return StoreError(f"MongoDB refused ({code}): {_first_line(error)}; {why}")


def find_reply_error(reply: Mapping[str, Any]) -> Exception | None:
    """What is wrong with a reply that is otherwise fine: an insert or a delete that was refused in it, or a majority
    that was not heard of in time, so that a failover may still undo the write."""
    for refused in reply.get("writeErrors", ()):
        code = int(refused.get("code", 0))
        return _translate_reply(code, errors.WriteError(str(refused.get("errmsg", "")), code))
    unheard = reply.get("writeConcernError")
    if unheard is None:
        return None
    return StoreUnclear(
        f"MongoDB did not hear of a majority ({unheard.get('code')}: {unheard.get('errmsg', '')}); "
        "are enough members up? Send it again and learn how it ended"
    )


def lock_timeout_error() -> StoreUnclear:
    """A time-out that no plan has an answer to: only claims may be Busy."""
    return StoreUnclear(
        "MongoDB was not done within ?patience= seconds: the key is held by an open transaction, or a majority is "
        "slow; send the operation again and learn how it ended"
    )


def unstorable_value_error(error: Exception) -> StoreError:
    """Larger than MongoDB's 16 MB, or half a surrogate pair."""
    return StoreError(
        f"a value of this operation cannot be stored in MongoDB: {_first_line(error)}; nothing was done "
        "(a record with its answer and an operation's steps may have 16 MB: lower max_answer in the policy, or let the "
        "steps return less)"
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
