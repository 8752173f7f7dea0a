"""The Redis store, async. Belongs to the event loop it is first used on.

With hiredis it speaks on one connection without waiting for its turn (pipe.py), which is all the batching Redis needs.
Without it, it is sync.py with awaits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import Plan, afollow
from retrysafe.stores.redis import urls, waking, wire
from retrysafe.stores.redis.commands import READ, Call, done, migration, plan
from retrysafe.stores.redis.failures import answered, unclear, unreachable
from retrysafe.stores.redis.layout import DEFAULT_PREFIX, Layout
from retrysafe.stores.redis.packing import PACK
from retrysafe.stores.redis.pipe import Pipe, possible
from retrysafe.stores.waking import AsyncListener

R = TypeVar("R")


class AsyncRedisStore:
    """From your client, or with `open` from a URL. Closes the client only if it owns it."""

    capabilities = wire.CAPABILITIES

    def __init__(self, client: Any, *, prefix: str = DEFAULT_PREFIX, buckets: int = 1, owned: bool = False) -> None:
        self._client = client
        self._layout = Layout(prefix, buckets)
        self._owned = owned
        self._pool = wire.checked_pool(client)
        self._server = wire.server_name(self._pool)
        self._arguments = wire.connection_arguments(self._pool)
        self._pipe = Pipe(self._pool, self._arguments, self._server) if possible(self._pool) else None
        self.batches_itself = self._pipe is not None
        """Calls at the same time go together by themselves: nothing is gained by holding them back."""
        self._listener = AsyncListener(lambda heard, wanted: waking.alisten(client, self._layout, heard, wanted))

    @classmethod
    def open(cls, url: str) -> AsyncRedisStore:
        wire.need_driver()
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        target = urls.target(url)
        # One more try to connect: a pooled connection that a proxy closed is not an outage.
        pool = urls.pool(BlockingConnectionPool, target.url, Retry(NoBackoff(), 1))
        client = Redis(connection_pool=pool)
        return cls(client, prefix=target.layout.prefix, buckets=target.layout.buckets, owned=True)

    async def execute(self, op: Op[R]) -> R:
        kind: type[Any] = type(op)
        pack = PACK.get(kind)
        if pack is None or self._pipe is None:
            return await self._alone(op)
        response = await self._pipe.ask(pack(op, self._layout))
        if isinstance(response, Exception):
            # Refused, so nothing was done: once more, the long way, which loads scripts and explains errors.
            return await self._alone(op)
        read: Callable[[Any, Any], R] = READ.get(kind, done)
        return read(op, response)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._follow([plan(op, self._layout) for op in ops])

    async def migrate(self) -> list[str]:
        applied: list[str] = (await self._follow([migration(self._layout)]))[0]
        return applied

    async def announce(self, record_id: bytes) -> None:
        await self._send([(b"PUBLISH", waking.channel(self._layout).encode(), record_id.hex().encode())])

    async def wait(self, record_id: bytes, seconds: float) -> None:
        await self._listener.wait(record_id, seconds)

    async def aclose(self) -> None:
        if self._pipe is not None:
            await self._pipe.aclose()
        await self._listener.aclose()
        if self._owned:
            await self._client.aclose()
            await self._pool.disconnect()

    async def _alone(self, op: Op[R]) -> R:
        reply: R = (await self._follow([plan(op, self._layout)]))[0]
        return reply

    async def _follow(self, plans: list[Plan[Call, Any]]) -> list[Any]:
        return await afollow(wire.together(plans, self._server), self._send)

    def _send(self, commands: wire.Exchange) -> Awaitable[list[Any]]:
        return self._exchange(commands) if self._pipe is None else self._pipe.exchange(commands)

    async def _exchange(self, commands: wire.Exchange) -> list[Any]:
        """Send commands in one write and read every response; an error the server answered is a response."""
        try:
            connection = await self._pool.get_connection(*self._arguments)
        except Exception as error:
            raise unreachable(error, self._server) from error
        try:
            await connection.send_packed_command([wire.packed(commands)])
            return [await _read(connection) for _ in commands]
        except BaseException as error:
            # Cancelled or failed: whatever is still to come on this connection belongs to nobody, and the
            # next one must not read it. Without waiting: a second cancellation finds nothing to interrupt.
            await connection.disconnect(nowait=True)
            if isinstance(error, Exception):
                raise unclear(error, self._server) from error
            raise
        finally:
            await self._pool.release(connection)


async def _read(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except Exception as error:
        if answered(error):
            return error
        raise
