"""Translation of pymongo's exceptions: did the server refuse the operation, or is its outcome unclear?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bson.errors import BSONError, InvalidDocument
from pymongo import errors

from retrysafe.core.texts import first_line
from retrysafe.errors import RetrySafeError, StoreError, StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.stores.base import LockNotAvailable
from retrysafe.stores.mongo.plans import WriteConflict

DUPLICATE_KEY_CODE = 11000
WRITE_CONFLICT_CODES = frozenset({DUPLICATE_KEY_CODE, 112, 24, 251})
"""Duplicate key, write conflict, lock timeout, the transaction is gone: nothing was done."""
MAX_TIME_EXPIRED_CODE = 50
NOT_PRIMARY_CODES = frozenset({10107, 13435, 13436, 10058})
"""The server is not the primary, and refused before it did anything."""
INTERRUPTED_CODES = frozenset({6, 7, 89, 91, 189, 262, 9001, 11600, 11601, 11602})
"""The server stepped down, shut down or lost its peers during the operation: it may have happened."""
TOO_LARGE_CODES = frozenset({10334, 17419, 17420, 17280})
NO_REPLICA_SET_CODES = frozenset({20, 76, 123})

_REFUSALS = {
    13: "this user may not do that: it needs the role readWrite on the database (docs/howto/mongodb.md)",
    18: "it does not accept this user or password; correct them in the URL, and see whether it wants authSource=",
    8000: "it does not accept this user or password; correct them in the URL",
    14031: "its disk is full; make room on it",
}


def translate_error(error: Exception) -> Exception:
    """The error as one of ours. LockNotAvailable and WriteConflict are handled inside the store."""
    if isinstance(error, RetrySafeError | LockNotAvailable | WriteConflict):
        return error
    if isinstance(error, errors.ServerSelectionTimeoutError | errors.WaitQueueTimeoutError):
        kind = StoreUnreachable if isinstance(error, errors.ServerSelectionTimeoutError) else StoreUnavailable
        return kind(f"no connection to MongoDB ({_drop_driver_state(_first_line(error))}): nothing was done; is it up?")
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
    """Translate an error that the server answered."""
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


def find_reply_error(reply: Mapping[str, Any], *, existing_allowed: bool = False) -> Exception | None:
    """The error inside a reply with `ok: 1`: an insert or a delete that was refused, or a majority that did not
    acknowledge in time, so that a failover may still undo the write. With `existing_allowed`, a document that exists is
    no error."""
    for refused in reply.get("writeErrors", ()):
        code = int(refused.get("code", 0))
        if existing_allowed and code == DUPLICATE_KEY_CODE:
            continue
        return _translate_reply(code, errors.WriteError(str(refused.get("errmsg", "")), code))
    concern_error = reply.get("writeConcernError")
    if concern_error is None:
        return None
    return StoreUnclear(
        f"MongoDB did not hear of a majority ({concern_error.get('code')}: {concern_error.get('errmsg', '')}); "
        "are enough members up? Send it again and learn how it ended"
    )


def lock_timeout_error() -> StoreUnclear:
    """For a timeout that no plan handles: only a claim may be answered with Busy."""
    return StoreUnclear(
        "MongoDB was not done within ?patience= seconds: the key is held by an open transaction, or a majority is "
        "slow; send the operation again and learn how it ended"
    )


def unstorable_value_error(error: Exception) -> StoreError:
    """For a value larger than MongoDB's 16 MB, or text with half a surrogate pair."""
    return StoreError(
        f"a value of this operation cannot be stored in MongoDB: {_first_line(error)}; nothing was done "
        "(a record with its answer and an operation's steps may have 16 MB: lower max_answer in the policy, or let the "
        "steps return less)"
    )


def _drop_driver_state(text: str) -> str:
    """The reason, without the driver's timeouts and its description of each server, which repeats the reason."""
    return re.split(r" \(configured timeouts: |, Timeout: ", text, maxsplit=1)[0]


def _first_line(error: Exception) -> str:
    return first_line(error)[:300]
