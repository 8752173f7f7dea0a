"""Translates errors of redis-py and of the server into ours. Each message says what is wrong and what to do.

Three cases differ. An error before the command was sent: nothing was done (StoreUnavailable). An error after the
command was sent and before its response: the outcome is unknown (StoreUnclear). An error that the server answered: the
command was refused. The server refuses each of our scripts before its first write or not at all, so nothing was done.
"""

from __future__ import annotations

import re

from retrysafe.core.texts import name_and_message
from retrysafe.errors import CorruptRecord, StoreError, StoreUnavailable, StoreUnclear, StoreUnreachable

_AS_CLUSTER = "give the URL of a cluster as redis+cluster://host:port,host:port"

_REFUSALS = {
    "OOM": "its memory is full and its eviction policy makes no room, so it takes no new record; "
    "raise `maxmemory`, or let `retrysafe worker` reap expired records",
    "READONLY": "it is a replica, or was made one by a failover; point the URL at the primary",
    "LOADING": "it is reading its data from disk after a start; try again in a moment",
    "BUSY": "another script keeps it busy; look at SLOWLOG, and end that script with SCRIPT KILL",
    "MASTERDOWN": "it is a replica that has lost its primary; point the URL at the primary",
    "NOREPLICAS": "it has fewer replicas than `min-replicas-to-write` asks for; repair the replication",
    "MISCONF": "it cannot write to its disk and so refuses changes; look at its log, free space on the disk",
    "NOAUTH": "it wants a password; put one in the URL: redis://user:password@host",
    "WRONGPASS": "it does not accept this user or password; correct them in the URL",
    "NOPERM": "this user may not do that; its ACL needs the commands of our scripts on our keys, "
    "for example: ACL SETUSER name ~retrysafe:* +@read +@write +@scripting +time",
    "NOSCRIPT": "it forgets scripts as soon as they are loaded; "
    "do not put a balancer over several servers behind one address",
    "MOVED": f"it is a node of a cluster, and this key lives on another; {_AS_CLUSTER}",
    "CLUSTERDOWN": "it is a node of a cluster that is down: some slots have no living primary; look at CLUSTER INFO",
    "CROSSSLOT": f"it is a node of a cluster; {_AS_CLUSTER}",
    "TRYAGAIN": "a slot is being moved between two nodes of the cluster; try again when it has arrived",
}
for _same, _as in {"ASK": "MOVED", "UNKILLABLE": "BUSY"}.items():
    _REFUSALS[_same] = _REFUSALS[_as]

_POOL_EXHAUSTED_MESSAGE = "No connection available"
"""redis-py's message for an exhausted pool. It has no exception class for this case."""

# redis-py removes the code from the message of those errors for which it has a class.
_CODES_BY_CLASS = {
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "BusyLoadingError": "LOADING",
    "MasterDownError": "MASTERDOWN",
    "NoScriptError": "NOSCRIPT",
    "NoPermissionError": "NOPERM",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "ClusterCrossSlotError": "CROSSSLOT",
}

# `CORRUPT <id> <why>` is an error of our own scripts (scripts/prelude.lua). Newer servers append the script position.
_CORRUPT = re.compile(r"CORRUPT (?P<id>(?:[0-9a-f]{2})*) (?P<why>.*?)(?: script: .*)?", re.DOTALL)
# Redis before 7 wraps a command's error: `Error running script (call to f_…): @user_script:9: -OOM command …`
_WRAPPED = re.compile(r"-(?P<code>[A-Z]{2,}) ")
_BARE = re.compile(r"(?P<code>[A-Z]{2,})(?: |$)")


def refusal_error(error: Exception, server: str) -> StoreError:
    """The server refused the command: nothing was done."""
    message = str(error)
    corrupt = _CORRUPT.fullmatch(message)
    if corrupt is not None:
        return CorruptRecord(bytes.fromhex(corrupt["id"]), corrupt["why"])
    code = error_code(error)
    if "non local key" in message:
        code = "TRYAGAIN"
    if code == "WRONGTYPE":
        return StoreError(f"{server} holds something else under one of our keys ({message}): use another prefix")
    why = _REFUSALS.get(code, "look the message up, and at the server's log")
    return StoreUnavailable(f"{server} refused with {code} ({message}): {why}")


def unreachable_error(error: Exception, server: str) -> StoreUnavailable:
    """No connection could be made, so nothing was sent."""
    if is_server_answer(error):
        refused = refusal_error(error, server)
        if isinstance(refused, StoreUnavailable):
            return refused
    if _POOL_EXHAUSTED_MESSAGE in str(error):
        return StoreUnavailable(
            f"all connections to {server} are taken: nothing was done; is it too slow for the load?"
        )
    return StoreUnreachable(
        f"{server} could not be reached ({_format_error(error)}): nothing was done; start it, or check the URL"
    )


def unclear_error(error: Exception, server: str) -> StoreUnclear:
    """The command was sent and no response came, so the outcome is unknown."""
    return StoreUnclear(
        f"{server} did not answer after the request was sent ({_format_error(error)}): it may have been done; "
        "send it again to find out"
    )


def is_wire_error(error: Exception) -> bool:
    """True if the error comes from the driver or the socket. Other errors come from outside, for example from a signal
    handler that enforces a time limit, and must reach the caller unchanged."""
    from redis import exceptions

    return isinstance(error, exceptions.RedisError | OSError | EOFError | ValueError)


def is_server_answer(error: Exception) -> bool:
    """True if the server answered with this error. False if there was no answer."""
    from redis import exceptions

    return isinstance(error, exceptions.ResponseError | exceptions.BusyLoadingError | exceptions.AuthenticationError)


def is_demoted(responses: list[object]) -> bool:
    """True if a response is READONLY: the server was the primary and is a replica now."""
    return any(isinstance(each, Exception) and error_code(each) == "READONLY" for each in responses)


def error_code(error: Exception) -> str:
    """The error's code: `OOM`, `READONLY` …; `ERR` where there is none."""
    message = str(error)
    for kind in type(error).__mro__:
        if kind.__name__ in _CODES_BY_CLASS:
            return _CODES_BY_CLASS[kind.__name__]
        if kind.__name__ == "AuthenticationError":
            return "NOAUTH" if "required" in message.lower() else "WRONGPASS"
    found = _WRAPPED.search(message) or _BARE.match(message)
    return found["code"] if found is not None else "ERR"


def _format_error(error: Exception) -> str:
    return name_and_message(error) if str(error) else type(error).__name__
