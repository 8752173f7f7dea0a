"""One server and the way to it, async: node.py with awaits, or the pipe where there is one."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from retrysafe.stores.redis import wire
from retrysafe.stores.redis.failures import is_demoted, is_server_answer, unclear_error, unreachable_error
from retrysafe.stores.redis.pipe import Pipe, abort_connection, can_pipe


class AsyncNode:
    """`piped=False` where commands must not go out before the responses to others: WAIT holds up what is behind it."""

    def __init__(self, pool: Any, name: str, *, piped: bool = True) -> None:
        self.pool = pool
        self.name = name
        self._arguments = wire.connection_arguments(pool)
        self.pipe = Pipe(pool, self._arguments, name) if piped and can_pipe(pool) else None

    def exchange(self, commands: wire.Exchange) -> Awaitable[list[Any]]:
        """Send commands in one write and read every response; an error the server answered is a response."""
        return self._exchange_pooled(commands) if self.pipe is None else self._exchange_piped(self.pipe, commands)

    async def aclose(self) -> None:
        if self.pipe is not None:
            await self.pipe.aclose()

    async def _exchange_piped(self, pipe: Pipe, commands: wire.Exchange) -> list[Any]:
        responses = await pipe.exchange(commands)
        if is_demoted(responses):
            pipe.drop_connection()  # the next connection is made to whoever is the primary by then
        return responses

    async def _exchange_pooled(self, commands: wire.Exchange) -> list[Any]:
        try:
            connection = await self.pool.get_connection(*self._arguments)
        except Exception as error:
            raise unreachable_error(error, self.name) from error
        try:
            await connection.send_packed_command([wire.encode_commands(commands)])
            responses = [await _read_response(connection) for _ in commands]
            if is_demoted(responses):
                await abort_connection(connection)
            return responses
        except BaseException as error:
            # Cancelled or failed: whatever is still to come on this connection belongs to nobody, and the
            # next one must not read it. Without waiting: a second cancellation finds nothing to interrupt.
            await abort_connection(connection)
            if isinstance(error, Exception):
                raise unclear_error(error, self.name) from error
            raise
        finally:
            await self.pool.release(connection)


async def _read_response(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except Exception as error:
        if is_server_answer(error):
            return error
        raise
