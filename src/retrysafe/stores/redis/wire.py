"""From plans to commands on a connection, once for both colours: what goes out together, what is said again.

We take a connection from redis-py's pool and speak on it ourselves, rather than through the client's
`execute_command`. So it is known whether a command had left when something failed, nothing is silently sent
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

CAPABILITIES = Capabilities(name="redis", durable=True, shared=True, transactions=False, clock="store", wakes=True)

MAX_SCRIPT_OPS = 128
"""How many records one run of a script changes, at most: a millisecond or two of a server that serves one at a time."""

MAX_SCRIPT_BYTES = 1 << 20
"""How many bytes one run brings, unless a single operation has more: they are copied while nobody else is served."""

Command = tuple[bytes, ...]
Exchange = list[Command]
"""Commands that go out in one write; answered by the list of their responses, errors among them as values."""


def merge_plans(plans: Sequence[Plan[ScriptCall, Any]], server: str) -> Plan[Exchange, list[Any]]:
    """Follow several plans at once: in each round, the next call of every plan goes out in one write."""
    replies: list[Any] = [None] * len(plans)
    calls: dict[int, ScriptCall] = {}

    def go_on(place: int, response: Any) -> None:
        try:
            calls[place] = plans[place].send(response)
        except StopIteration as done:
            replies[place] = done.value

    for place in range(len(plans)):
        go_on(place, None)
    while calls:
        places, sent = list(calls), list(calls.values())
        calls.clear()
        responses = yield from _run_scripts(sent)
        for place, response in zip(places, responses, strict=True):
            if isinstance(response, Exception):
                raise refusal_error(response, server) from response
            go_on(place, response)
    return replies


def _run_scripts(calls: list[ScriptCall]) -> Plan[Exchange, list[Any]]:
    """Run scripts by their digest. Those the server does not know (it restarted, failed over, was flushed)
    were not run: they are loaded, and only they are sent again."""
    merged = list(_merge_calls(calls))
    responses: list[Any] = yield [call.build_command() for call, _ in merged]
    unknown = [place for place, response in enumerate(responses) if _is_unknown_script(response)]
    if unknown:
        sources = {merged[place][0].script.source for place in unknown}
        loads: Exchange = [(b"SCRIPT", b"LOAD", source) for source in sources]
        again = yield loads + [merged[place][0].build_command() for place in unknown]
        for place, response in zip(unknown, again[len(loads) :], strict=True):
            responses[place] = response
    apart: list[Any] = [None] * len(calls)
    for (call, places), response in zip(merged, responses, strict=True):
        for place, own in zip(places, split_replies(response, len(places), call.script.many), strict=True):
            apart[place] = own
    return apart


def _merge_calls(calls: list[ScriptCall]) -> Iterator[tuple[ScriptCall, list[int]]]:
    """One call for all that one run of a script can do: same script, same bucket, same moment."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, (script, keys, args) in enumerate(calls):
        group = (script.sha, *keys[:2], args[0]) if script.many else (place,)
        groups.setdefault(group, []).append(place)
    for places in groups.values():
        for some in chunk_slices([sum(map(len, calls[place].args)) for place in places]):
            yield _join_calls([calls[place] for place in places[some]]), places[some]


def _join_calls(calls: list[ScriptCall]) -> ScriptCall:
    script, keys, args = calls[0]
    if len(calls) == 1:
        return calls[0]
    own_keys, own_args = ((call.keys[2:] for call in calls), (call.args[1:] for call in calls))
    return ScriptCall(script, (*keys[:2], *chain.from_iterable(own_keys)), (args[0], *chain.from_iterable(own_args)))


def chunk_slices(sizes: Sequence[int]) -> Iterator[slice]:
    """How operations of these sizes in bytes are shared out over runs of a script, in their order."""
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and (place - start >= MAX_SCRIPT_OPS or total + size > MAX_SCRIPT_BYTES):
            yield slice(start, place)
            start, total = place, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))


def split_replies(response: Any, count: int, many: bool) -> list[Any]:
    """What one run of a script says to each of those it was run for. A refusal is for all of them."""
    if many and not isinstance(response, Exception):
        return list(response)
    return [response] * count


def encode_commands(commands: Exchange) -> bytes:
    """Commands as they travel. Ours are bytes already, so this is a good deal quicker than the driver's own packing."""
    pack = _load_encoder()
    return pack(commands[0]) if len(commands) == 1 else b"".join(map(pack, commands))


@cache
def _load_encoder() -> Callable[[Command], bytes]:
    try:
        from hiredis import pack_command
    except ImportError:
        return _encode_command
    return pack_command  # type: ignore[return-value]  # it says `tuple` of one, and takes any


def _encode_command(command: Command) -> bytes:
    parts = [b"*%d\r\n" % len(command)]
    parts.extend(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)
    return b"".join(parts)


def _is_unknown_script(response: Any) -> bool:
    return isinstance(response, Exception) and error_code(response) == "NOSCRIPT"


def check_pool(client: Any) -> Any:
    """The client's pool, if we can speak on its connections."""
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
    """redis-py before 5.3 wants a command's name to give out a connection; since then it warns about one."""
    name = inspect.signature(pool.get_connection).parameters.get("command_name")
    return ("EVALSHA",) if name is not None and name.default is inspect.Parameter.empty else ()


def server_name(pool: Any) -> str:
    """How messages call the server. Never with a password."""
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
