"""One Redis server and the connections to it, sync and async. Commands go out in one write; every response is read.

The two classes are not twins. The sync node can send to several nodes before it reads from the first, because it
splits an exchange into `send` and `read_responses`. The async node uses the pipe (pipe.py) where it can.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from retrysafe.errors import StoreError
from retrysafe.stores.redis import wire
from retrysafe.stores.redis.failures import (
    is_demoted,
    is_server_answer,
    is_wire_error,
    unclear_error,
    unreachable_error,
)
from retrysafe.stores.redis.pipe import Pipe, abort_connection, can_pipe
from retrysafe.stores.redis.routing import ScatterRequest
from retrysafe.stores.redis.slots import Address

NodeAnswers = dict[Address, list[Any] | StoreError]


class Node:
    """Exchanges commands on the connections of a pool. Each thread has a connection of its own."""

    def __init__(self, pool: Any, name: str) -> None:
        self.pool = pool
        self.name = name
        self._arguments = wire.connection_arguments(pool)

    def exchange(self, commands: wire.Exchange) -> list[Any]:
        """Send commands in one write and read every response. An error that the server answered is a response."""
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
    """Commands that were sent. Their connection is reserved until all responses were read."""

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
            self._connection.disconnect()  # the next connection goes to the server that is the primary by then
        self._node.pool.release(self._connection)
        return responses

    def discard_connection(self, error: BaseException) -> BaseException:
        """Close the connection and return the error to raise. Responses may still arrive on this connection, and the
        next caller must not read them."""
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


class ClusterNodes:
    """The nodes of a cluster, each opened when it is first used."""

    def __init__(self, open_node: Callable[[Address], Node]) -> None:
        self._open_node = open_node
        self._nodes: dict[Address, Node] = {}
        self._lock = threading.Lock()

    def node_at(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            with self._lock:
                node = self._nodes.get(address)
                if node is None:
                    node = self._nodes[address] = self._open_node(address)
        return node

    def scatter(self, request: ScatterRequest) -> NodeAnswers:
        """Send to all nodes first, then read the responses of each."""
        sent: dict[Address, SentCommands | StoreError] = {}
        for address, commands in request.items():
            try:
                sent[address] = self.node_at(address).send(commands)
            except StoreError as error:
                sent[address] = error
        answers: NodeAnswers = {}
        for address, in_flight in sent.items():
            try:
                answers[address] = in_flight.read_responses() if isinstance(in_flight, SentCommands) else in_flight
            except StoreError as error:
                answers[address] = error
        return answers

    def close(self) -> None:
        with self._lock:
            nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            node.pool.disconnect()


class AsyncNode:
    """Exchanges commands on the pipe, or on the connections of a pool where there is no pipe.

    `piped=False` is for stores that wait for replicas: WAIT blocks its connection, and every command behind it.
    """

    def __init__(self, pool: Any, name: str, *, piped: bool = True) -> None:
        self.pool = pool
        self.name = name
        self._arguments = wire.connection_arguments(pool)
        self.pipe = Pipe(pool, self._arguments, name) if piped and can_pipe(pool) else None

    def exchange(self, commands: wire.Exchange) -> Awaitable[list[Any]]:
        """Send commands in one write and read every response. An error that the server answered is a response."""
        return self._exchange_pooled(commands) if self.pipe is None else self._exchange_piped(self.pipe, commands)

    async def aclose(self) -> None:
        if self.pipe is not None:
            await self.pipe.aclose()

    async def _exchange_piped(self, pipe: Pipe, commands: wire.Exchange) -> list[Any]:
        responses = await pipe.exchange(commands)
        if is_demoted(responses):
            pipe.drop_connection()  # the next connection goes to the server that is the primary by then
        return responses

    async def _exchange_pooled(self, commands: wire.Exchange) -> list[Any]:
        try:
            connection = await self.pool.get_connection(*self._arguments)
        except Exception as error:
            raise unreachable_error(error, self.name) from error
        try:
            await connection.send_packed_command([wire.encode_commands(commands)])
            responses = [await _aread_response(connection) for _ in commands]
            if is_demoted(responses):
                await abort_connection(connection)
            return responses
        except BaseException as error:
            # Cancelled or failed. Responses may still arrive on this connection, and the next caller must not read
            # them. The connection is aborted without waiting, so a second cancellation has nothing to interrupt.
            await abort_connection(connection)
            if isinstance(error, Exception):
                raise unclear_error(error, self.name) from error
            raise
        finally:
            await self.pool.release(connection)


async def _aread_response(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except Exception as error:
        if is_server_answer(error):
            return error
        raise


class AsyncClusterNodes:
    """The nodes of a cluster, each opened when it is first used."""

    def __init__(self, open_node: Callable[[Address], AsyncNode]) -> None:
        self._open_node = open_node
        self._nodes: dict[Address, AsyncNode] = {}

    def node_at(self, address: Address) -> AsyncNode:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = self._open_node(address)
        return node

    async def scatter(self, request: ScatterRequest) -> NodeAnswers:
        """Exchange with all nodes at the same time."""
        answers = await asyncio.gather(
            *(self._exchange_or_error(address, commands) for address, commands in request.items())
        )
        return dict(zip(request, answers, strict=True))

    async def aclose(self) -> None:
        nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            await node.aclose()
        for node in nodes:
            await node.pool.disconnect()

    async def _exchange_or_error(self, address: Address, commands: wire.Exchange) -> list[Any] | StoreError:
        try:
            return await self.node_at(address).exchange(commands)
        except StoreError as error:
            return error
