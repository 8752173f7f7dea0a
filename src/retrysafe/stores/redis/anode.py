"""One server and the way to it, async: node.py with awaits, or the pipe where there is one."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from retrysafe.stores.redis import wire
from retrysafe.stores.redis.failures import answered, demoted, unclear, unreachable
from retrysafe.stores.redis.pipe import Pipe, let_go, possible


class AsyncNode:
    """`piped=False` where commands must not go out before the responses to others: WAIT holds up what is behind it."""

    def __init__(self, pool: Any, name: str, *, piped: bool = True) -> None:
        self.pool = pool
        self.name = name
        self._arguments = wire.connection_arguments(pool)
        self.pipe = Pipe(pool, self._arguments, name) if piped and possible(pool) else None

    def exchange(self, commands: wire.Exchange) -> Awaitable[list[Any]]:
        """Send commands in one write and read every response; an error the server answered is a response."""
        return self._pooled(commands) if self.pipe is None else self._piped(self.pipe, commands)

    async def aclose(self) -> None:
        if self.pipe is not None:
            await self.pipe.aclose()

    async def _piped(self, pipe: Pipe, commands: wire.Exchange) -> list[Any]:
        responses = await pipe.exchange(commands)
        if demoted(responses):
            pipe.hang_up()  # the next connection is made to whoever is the primary by then
        return responses

    async def _pooled(self, commands: wire.Exchange) -> list[Any]:
        try:
            connection = await self.pool.get_connection(*self._arguments)
        except Exception as error:
            raise unreachable(error, self.name) from error
        try:
            await connection.send_packed_command([wire.packed(commands)])
            responses = [await _read(connection) for _ in commands]
            if demoted(responses):
                await let_go(connection)
            return responses
        except BaseException as error:
            # Cancelled or failed: whatever is still to come on this connection belongs to nobody, and the
            # next one must not read it. Without waiting: a second cancellation finds nothing to interrupt.
            await let_go(connection)
            if isinstance(error, Exception):
                raise unclear(error, self.name) from error
            raise
        finally:
            await self.pool.release(connection)


async def _read(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except Exception as error:
        if answered(error):
            return error
        raise
