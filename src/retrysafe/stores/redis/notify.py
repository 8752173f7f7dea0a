"""Notifications by PUBLISH and SUBSCRIBE, for callers that wait until a record is settled.

The listener has a connection of its own, so that it takes none from the pool.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from retrysafe.stores.notify import LISTEN_POLL_SECONDS, OnNotify, ShouldContinue
from retrysafe.stores.redis.layout import Layout


def channel_name(layout: Layout) -> str:
    return f"{layout.prefix}settled"


def build_publish(layout: Layout, record_id: bytes) -> tuple[bytes, ...]:
    return (b"PUBLISH", channel_name(layout).encode(), record_id.hex().encode())


def listen(client: Any, layout: Layout, on_notify: OnNotify, should_continue: ShouldContinue) -> None:
    own = client.__class__(connection_pool=_build_own_pool(client))
    try:
        with own.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(channel_name(layout))
            while should_continue():
                _dispatch(subscription.get_message(timeout=LISTEN_POLL_SECONDS), on_notify)
    finally:
        own.close()
        own.connection_pool.disconnect()


async def alisten(client: Any, layout: Layout, on_notify: OnNotify, should_continue: ShouldContinue) -> None:
    own = client.__class__(connection_pool=_build_own_pool(client))
    try:
        async with own.pubsub(ignore_subscribe_messages=True) as subscription:
            await subscription.subscribe(channel_name(layout))
            while should_continue():
                _dispatch(await subscription.get_message(timeout=LISTEN_POLL_SECONDS), on_notify)
    finally:
        await own.aclose()
        await own.connection_pool.disconnect()


def _build_own_pool(client: Any) -> Any:
    """A pool of one connection, with the server, credentials and connection class of the client's pool."""
    pool = client.connection_pool
    pool_class = next(each for each in type(pool).__mro__ if each.__name__ == "ConnectionPool")
    return pool_class(connection_class=pool.connection_class, max_connections=1, **pool.connection_kwargs)


def _dispatch(message: Any, on_notify: OnNotify) -> None:
    if message is None or message.get("type") != "message":
        return
    with suppress(ValueError, AttributeError):  # another program publishes on our channel
        on_notify(bytes.fromhex(message["data"].decode()))
