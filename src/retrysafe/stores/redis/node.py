"""One server and the way to it, sync: commands out in one write, every response back."""

from __future__ import annotations

from typing import Any

from retrysafe.stores.redis import wire
from retrysafe.stores.redis.failures import (
    is_demoted,
    is_server_answer,
    is_wire_error,
    unclear_error,
    unreachable_error,
)


class Node:
    """Speaks on the connections of a pool, each thread on its own."""

    def __init__(self, pool: Any, name: str) -> None:
        self.pool = pool
        self.name = name
        self._arguments = wire.connection_arguments(pool)

    def exchange(self, commands: wire.Exchange) -> list[Any]:
        """Send commands in one write and read every response; an error the server answered is a response."""
        return self.send(commands).read_responses()

    def send(self, commands: wire.Exchange) -> SentCommands:
        try:
            connection = self.pool.get_connection(*self._arguments)
        except Exception as error:
            raise unreachable_error(error, self.name) from error
        sent = SentCommands(self, connection, len(commands))
        try:
            connection.send_packed_command([wire.encode_commands(commands)])
        except BaseException as error:
            raise sent.discard_connection(error) from error
        return sent


class SentCommands:
    """Commands under way on a connection that is nobody else's until their responses were read."""

    def __init__(self, node: Node, connection: Any, count: int) -> None:
        self._node = node
        self._connection = connection
        self._count = count

    def read_responses(self) -> list[Any]:
        try:
            responses = [_read_response(self._connection) for _ in range(self._count)]
        except BaseException as error:
            raise self.discard_connection(error) from error
        if is_demoted(responses):
            self._connection.disconnect()  # the next one is made to whoever is the primary by then
        self._node.pool.release(self._connection)
        return responses

    def discard_connection(self, error: BaseException) -> BaseException:
        """Whatever is still to come on this connection belongs to nobody: the next one must not read it."""
        self._connection.disconnect()
        self._node.pool.release(self._connection)
        return unclear_error(error, self._node.name) if isinstance(error, Exception) and is_wire_error(error) else error


def _read_response(connection: Any) -> Any:
    try:
        return connection.read_response()
    except Exception as error:
        if is_server_answer(error):
            return error
        raise
