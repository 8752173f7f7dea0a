"""PUBLISH and SUBSCRIBE, for routes that wait. The listener has a connection of its own: the pool's are for work."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from retrysafe.stores.redis.layout import Layout
from retrysafe.stores.waking import BEAT, Heard, Wanted


def channel(layout: Layout) -> str:
    return f"{layout.prefix}settled"


def announcement(layout: Layout, record_id: bytes) -> tuple[bytes, ...]:
    return (b"PUBLISH", channel(layout).encode(), record_id.hex().encode())


def listen(client: Any, layout: Layout, heard: Heard, wanted: Wanted) -> None:
    own = client.__class__(connection_pool=_own_pool(client))
    try:
        with own.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(channel(layout))
            while wanted():
                _tell(subscription.get_message(timeout=BEAT), heard)
    finally:
        own.close()
        own.connection_pool.disconnect()


async def alisten(client: Any, layout: Layout, heard: Heard, wanted: Wanted) -> None:
    own = client.__class__(connection_pool=_own_pool(client))
    try:
        async with own.pubsub(ignore_subscribe_messages=True) as subscription:
            await subscription.subscribe(channel(layout))
            while wanted():
                _tell(await subscription.get_message(timeout=BEAT), heard)
    finally:
        await own.aclose()
        await own.connection_pool.disconnect()


def _own_pool(client: Any) -> Any:
    """A pool of one like the client's: same server, same credentials, same kind of connection."""
    pool = client.connection_pool
    plain = next(kind for kind in type(pool).__mro__ if kind.__name__ == "ConnectionPool")
    return plain(connection_class=pool.connection_class, max_connections=1, **pool.connection_kwargs)


def _tell(message: Any, heard: Heard) -> None:
    if message is None or message.get("type") != "message":
        return
    with suppress(ValueError, AttributeError):  # somebody else speaks on our channel
        heard(bytes.fromhex(message["data"].decode()))
