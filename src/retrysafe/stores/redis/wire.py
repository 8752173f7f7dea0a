"""Turns plans into Redis commands, for sync and async stores: which calls share a command, which are sent again.

The stores take a connection from redis-py's pool and write commands themselves, instead of calling the client's
`execute_command`. So it is known whether a command had been sent when something failed, nothing is silently sent
twice, and any number of commands go out in one write.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

from retrysafe.errors import MissingDriver, UsageError
from retrysafe.stores.base import Capabilities, Plan
from retrysafe.stores.redis.commands import ScriptCall
from retrysafe.stores.redis.failures import error_code, refusal_error

CAPABILITIES = Capabilities(
    name="redis", durable=True, shared=True, transactions=False, clock="store", backlog="index", wakes=True
)

MAX_SCRIPT_OPS = 128
"""The most records that one script run changes: a millisecond or two. The server runs one script at a time."""

MAX_SCRIPT_BYTES = 1 << 20
"""The most bytes for one script run, unless a single operation has more. The server serves no other client while it
copies them."""

Command = tuple[bytes, ...]
Exchange = list[Command]
"""Commands that go out in one write. The answer is the list of their responses; an error is a value in this list."""


def merge_plans(plans: Sequence[Plan[ScriptCall, Any]], server: str) -> Plan[Exchange, list[Any]]:
    """Run several plans at once. In each round, the next call of every plan goes out in one write."""
    replies: list[Any] = [None] * len(plans)
    calls: dict[int, ScriptCall] = {}

    def resume(position: int, response: Any) -> None:
        try:
            calls[position] = plans[position].send(response)
        except StopIteration as done:
            replies[position] = done.value

    for position in range(len(plans)):
        resume(position, None)
    while calls:
        positions, sent = list(calls), list(calls.values())
        calls.clear()
        responses = yield from _run_scripts(sent)
        for position, response in zip(positions, responses, strict=True):
            if isinstance(response, Exception):
                raise refusal_error(response, server) from response
            resume(position, response)
    return replies


def _run_scripts(calls: list[ScriptCall]) -> Plan[Exchange, list[Any]]:
    """Run scripts by their digest. A script that the server does not know (after a restart, a failover or a flush) was
    not run. It is loaded, and only its calls are sent again."""
    merged = list(_merge_calls(calls))
    responses: list[Any] = yield [call.build_command() for call, _ in merged]
    unknown = [position for position, response in enumerate(responses) if _is_unknown_script(response)]
    if unknown:
        sources = {merged[position][0].script.source for position in unknown}
        loads: Exchange = [(b"SCRIPT", b"LOAD", source) for source in sources]
        again = yield loads + [merged[position][0].build_command() for position in unknown]
        for position, response in zip(unknown, again[len(loads) :], strict=True):
            responses[position] = response
    apart: list[Any] = [None] * len(calls)
    for (call, positions), response in zip(merged, responses, strict=True):
        for position, own in zip(positions, split_replies(response, len(positions), call.script.many), strict=True):
            apart[position] = own
    return apart


def _merge_calls(calls: list[ScriptCall]) -> Iterator[tuple[ScriptCall, list[int]]]:
    """Merge calls that one script run can do: those with the same script, bucket and time."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for position, (script, keys, args) in enumerate(calls):
        group = (script.sha, *keys[:2], args[0]) if script.many else (position,)
        groups.setdefault(group, []).append(position)
    for positions in groups.values():
        for chunk in chunk_slices([sum(map(len, calls[position].args)) for position in positions]):
            yield _join_calls([calls[position] for position in positions[chunk]]), positions[chunk]


def _join_calls(calls: list[ScriptCall]) -> ScriptCall:
    script, keys, args = calls[0]
    if len(calls) == 1:
        return calls[0]
    own_keys, own_args = ((call.keys[2:] for call in calls), (call.args[1:] for call in calls))
    return ScriptCall(script, (*keys[:2], *chain.from_iterable(own_keys)), (args[0], *chain.from_iterable(own_args)))


def chunk_slices(sizes: Sequence[int]) -> Iterator[slice]:
    """Divide operations of these sizes (in bytes) into script runs, in order, by MAX_SCRIPT_OPS and
    MAX_SCRIPT_BYTES."""
    start = total = 0
    for position, size in enumerate(sizes):
        if position > start and (position - start >= MAX_SCRIPT_OPS or total + size > MAX_SCRIPT_BYTES):
            yield slice(start, position)
            start, total = position, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))


def split_replies(response: Any, count: int, many: bool) -> list[Any]:
    """Divide the response of one script run into a reply for each operation. An error is the reply for all of them."""
    if many and not isinstance(response, Exception):
        return list(response)
    return [response] * count


def encode_commands(commands: Exchange) -> bytes:
    """Encode commands as RESP. The arguments are bytes already, so this is much faster than redis-py's own packing."""
    pack = _load_encoder()
    return pack(commands[0]) if len(commands) == 1 else b"".join(map(pack, commands))


@cache
def _load_encoder() -> Callable[[Command], bytes]:
    try:
        from hiredis import pack_command
    except ImportError:
        return _encode_command
    return pack_command  # type: ignore[return-value]  # its hint says a tuple of one; it takes any length


def _encode_command(command: Command) -> bytes:
    parts = [b"*%d\r\n" % len(command)]
    parts.extend(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)
    return b"".join(parts)


def _is_unknown_script(response: Any) -> bool:
    return isinstance(response, Exception) and error_code(response) == "NOSCRIPT"


def check_pool(client: Any) -> Any:
    """The client's connection pool. Raises UsageError if the store cannot use its connections."""
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        raise UsageError(
            f"{type(client).__name__} has no connection pool: pass a redis.Redis or redis.asyncio.Redis "
            "client of one server; a cluster is opened by its URL, redis+cluster://host:port,host:port"
        )
    if pool.get_encoder().decode_responses:
        raise UsageError(
            "the client has decode_responses=True, but stored answers are bytes and would not come back as "
            "they were: pass a client made without it, Redis.from_url(url)"
        )
    return pool


def connection_arguments(pool: Any) -> tuple[str, ...]:
    """The arguments for the pool's `get_connection`. redis-py before 5.3 needs a command's name; since then it warns
    about one."""
    name = inspect.signature(pool.get_connection).parameters.get("command_name")
    return ("EVALSHA",) if name is not None and name.default is inspect.Parameter.empty else ()


def server_name(pool: Any) -> str:
    """The server's name for messages. It never contains a password."""
    given = pool.connection_kwargs
    if "connection_pool" in given:
        return f"Redis ({given['connection_pool'].service_name!r} of the sentinels)"
    if "path" in given:
        return f"Redis at {given['path']}"
    return f"Redis at {given.get('host', 'localhost')}:{given.get('port', 6379)}"


def require_driver() -> None:
    try:
        import redis  # noqa: F401
    except ImportError as error:
        raise MissingDriver("Redis", "redis", "redis") from error
