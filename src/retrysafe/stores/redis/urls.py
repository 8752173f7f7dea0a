"""A store URL: ours to read first, then redis-py's.

    redis://[[user]:password@]host[:port][/db]?prefix=…&buckets=…&(anything redis-py knows)

`rediss://` is TLS; `valkey://` is `redis://` by another name.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from retrysafe.errors import BadName, StoreURLError
from retrysafe.stores.redis.layout import DEFAULT_PREFIX, Layout

# A store that hangs is a store that is down: give up on a silent one, and say so, before callers pile up.
TIMEOUT = 5.0
CONNECTIONS = 50

_SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis"}
_OURS = ("prefix", "buckets")


class Target(NamedTuple):
    """Where the server is, as redis-py wants to hear it, and how our keys are laid out there."""

    url: str
    layout: Layout


def target(url: str) -> Target:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise StoreURLError(
            f"{parts.scheme!r} is not a Redis scheme: write redis://, rediss:// or valkey://host:port/db"
        )
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in pairs if name in _OURS}
    theirs = urlencode([(name, value) for name, value in pairs if name not in _OURS])
    driver_url = urlunsplit(parts._replace(scheme=_SCHEMES[parts.scheme], query=theirs))
    return Target(driver_url, Layout(ours.get("prefix", DEFAULT_PREFIX), _buckets(ours.get("buckets", "1"))))


def _buckets(value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise BadName(f"buckets={value!r} is not possible: give a number from 1 to 256; 1 is the default")
    return int(value)


def pool(pool_class: Any, url: str, retry: Any) -> Any:
    """A bounded pool for this URL. Nothing connects yet, but what is wrong with the URL is found here."""
    try:
        made = pool_class.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=TIMEOUT,
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            retry=retry,
        )
        made.connection_class(**made.connection_kwargs)  # an option nobody knows would only surface at first use
    except (ValueError, TypeError) as error:
        raise StoreURLError(
            f"the URL's options are not what redis-py takes ({error}): "
            f"give those of its Redis.from_url, or our own {', '.join(_OURS)}"
        ) from error
    return made
