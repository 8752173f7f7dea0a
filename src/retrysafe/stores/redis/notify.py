"""PUBLISH and SUBSCRIBE, for routes that wait. The listener has a connection of its own: the pool's are for work."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from retrysafe.stores.notify import LISTEN_POLL_SECONDS, OnNotify, ShouldContinue
from retrysafe.stores.redis.layout import Layout


def channel_name(layout: Layout) -> str:
    return f"{layout.prefix}settled"


def build_publish(layout: Layout, record_id: bytes) -> tuple[bytes, ...]:
    return (b"PUBLISH", channel_name(layout).encode(), record_id.hex().encode())


def listen(client: Any, layout: Layout, heard: OnNotify, wanted: ShouldContinue) -> None:
    own = client.__class__(connection_pool=_build_own_pool(client))
    try:
        with own.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(channel_name(layout))
            while wanted():
                _dispatch(subscription.get_message(timeout=LISTEN_POLL_SECONDS), heard)
    finally:
        own.close()
        own.connection_pool.disconnect()


async def alisten(client: Any, layout: Layout, heard: OnNotify, wanted: ShouldContinue) -> None:
    own = client.__class__(connection_pool=_build_own_pool(client))
    try:
        async with own.pubsub(ignore_subscribe_messages=True) as subscription:
            await subscription.subscribe(channel_name(layout))
            while wanted():
                _dispatch(await subscription.get_message(timeout=LISTEN_POLL_SECONDS), heard)
    finally:
        await own.aclose()
        await own.connection_pool.disconnect()


def _build_own_pool(client: Any) -> Any:
    """A pool of one like the client's: same server, same credentials, same kind of connection."""
    pool = client.connection_pool
    plain = next(kind for kind in type(pool).__mro__ if kind.__name__ == "ConnectionPool")
    return plain(connection_class=pool.connection_class, max_connections=1, **pool.connection_kwargs)


def _dispatch(message: Any, heard: OnNotify) -> None:
    if message is None or message.get("type") != "message":
        return
    with suppress(ValueError, AttributeError):  # somebody else speaks on our channel
        heard(bytes.fromhex(message["data"].decode()))
