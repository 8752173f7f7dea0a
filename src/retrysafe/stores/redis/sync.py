"""The Redis store, sync. Safe to use from many threads: each speaks on its own connection of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import Plan, follow
from retrysafe.stores.redis import urls, waking, wire
from retrysafe.stores.redis.commands import Call, migration, plan
from retrysafe.stores.redis.failures import answered, unclear, unreachable
from retrysafe.stores.redis.layout import DEFAULT_PREFIX, Layout
from retrysafe.stores.waking import Listener

R = TypeVar("R")


class RedisStore:
    """From your client, or with `open` from a URL. Closes the client only if it owns it."""

    capabilities = wire.CAPABILITIES

    def __init__(self, client: Any, *, prefix: str = DEFAULT_PREFIX, buckets: int = 1, owned: bool = False) -> None:
        self._client = client
        self._layout = Layout(prefix, buckets)
        self._owned = owned
        self._pool = wire.checked_pool(client)
        self._server = wire.server_name(self._pool)
        self._arguments = wire.connection_arguments(self._pool)
        self._listener = Listener(lambda heard, wanted: waking.listen(client, self._layout, heard, wanted))

    @classmethod
    def open(cls, url: str) -> RedisStore:
        wire.need_driver()
        from redis import BlockingConnectionPool, Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        target = urls.target(url)
        # One more try to connect: a pooled connection that a proxy closed is not an outage.
        pool = urls.pool(BlockingConnectionPool, target.url, Retry(NoBackoff(), 1))
        client = Redis(connection_pool=pool)
        return cls(client, prefix=target.layout.prefix, buckets=target.layout.buckets, owned=True)

    def execute(self, op: Op[R]) -> R:
        reply: R = self._follow([plan(op, self._layout)])[0]
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._follow([plan(op, self._layout) for op in ops])

    def migrate(self) -> list[str]:
        applied: list[str] = self._follow([migration(self._layout)])[0]
        return applied

    def announce(self, record_id: bytes) -> None:
        self._exchange([(b"PUBLISH", waking.channel(self._layout).encode(), record_id.hex().encode())])

    def wait(self, record_id: bytes, seconds: float) -> None:
        self._listener.wait(record_id, seconds)

    def close(self) -> None:
        self._listener.close()
        if self._owned:
            self._client.close()
            self._pool.disconnect()

    def _follow(self, plans: list[Plan[Call, Any]]) -> list[Any]:
        return follow(wire.together(plans, self._server), self._exchange)

    def _exchange(self, commands: wire.Exchange) -> list[Any]:
        """Send commands in one write and read every response; an error the server answered is a response."""
        try:
            connection = self._pool.get_connection(*self._arguments)
        except Exception as error:
            raise unreachable(error, self._server) from error
        try:
            connection.send_packed_command([wire.packed(commands)])
            return [_read(connection) for _ in commands]
        except BaseException as error:
            # Whatever is still to come on this connection belongs to nobody: the next one must not read it.
            connection.disconnect()
            if isinstance(error, Exception):
                raise unclear(error, self._server) from error
            raise
        finally:
            self._pool.release(connection)


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except Exception as error:
        if answered(error):
            return error
        raise
