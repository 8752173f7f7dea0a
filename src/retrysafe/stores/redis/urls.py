"""A store URL: ours to read first, then redis-py's.

    redis://[[user]:password@]host[:port][/db]?prefix=…&buckets=…&wait=…&(anything redis-py knows)
    redis+cluster://[[user]:password@]host:port,host:port,…?…                any of the cluster's nodes
    redis+sentinel://[[user]:password@]host:port,host:port,…[/db]?master=name&…    the sentinels; user and password
                                                                            are the servers', sentinels have their own

`rediss` in the place of `redis` is TLS; `valkey` is `redis` by another name.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from retrysafe.core.urls import redact_secrets
from retrysafe.errors import BadName, StoreURLError
from retrysafe.stores.redis.layout import DEFAULT_PREFIX, Layout
from retrysafe.stores.redis.replicas import NO_WAIT, ReplicaWait

# A store that hangs is a store that is down: give up on a silent one, and say so, before callers pile up.
SOCKET_TIMEOUT_SECONDS = 5.0
MAX_CONNECTIONS = 50

CLUSTER_BUCKETS = 16
"""A few for each node of an ordinary cluster. More spread better, and share fewer runs of a script."""

Kind = Literal["single", "cluster", "sentinel"]
Address = tuple[str, int]

_SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis"}
_KINDS: dict[str, Kind] = {"": "single", "cluster": "cluster", "sentinel": "sentinel"}
_PORTS: dict[Kind, int] = {"single": 6379, "cluster": 6379, "sentinel": 26379}
_OWN_OPTIONS = ("prefix", "buckets", "wait", "wait_timeout", "master", "sentinel_username", "sentinel_password")


class Target(NamedTuple):
    """Where the server is, as redis-py wants to hear it, and how our keys are laid out there."""

    url: str
    """Of one server; of a cluster's or the sentinels' first."""
    layout: Layout
    kind: Kind = "single"
    nodes: tuple[Address, ...] = ()
    """Of a cluster, or the sentinels: those that the URL names."""
    master: str = ""
    """What the sentinels call the servers they watch."""
    sentinel: tuple[tuple[str, str], ...] = ()
    """How to log in to the sentinels."""
    wait: ReplicaWait = NO_WAIT

    def url_at(self, address: Address) -> str:
        """The URL of another server, reached in the same way."""
        parts = urlsplit(self.url)
        account, at, _ = parts.netloc.rpartition("@")
        host, port = address
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return urlunsplit(parts._replace(netloc=f"{account}{at}{place}"))


def parse_url(url: str) -> Target:
    parts = urlsplit(url)
    base, _, way = parts.scheme.partition("+")
    if base not in _SCHEMES or way not in _KINDS:
        raise StoreURLError(
            f"{parts.scheme!r} is not a Redis scheme: write redis://, rediss:// or valkey://host:port/db, "
            "redis+cluster://host:port,host:port or redis+sentinel://host:port,host:port/db?master=name"
        )
    kind = _KINDS[way]
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in pairs if name in _OWN_OPTIONS}
    theirs = [(name, value) for name, value in pairs if name not in _OWN_OPTIONS]
    layout = Layout(
        ours.get("prefix", DEFAULT_PREFIX),
        _parse_buckets(ours.get("buckets", str(CLUSTER_BUCKETS if kind == "cluster" else 1))),
    )
    driver_url = urlunsplit(parts._replace(scheme=_SCHEMES[base], query=urlencode(theirs)))
    wait = _parse_wait(ours, dict(theirs))
    if kind == "single":
        return Target(driver_url, layout, wait=wait)
    nodes = _parse_nodes(parts.netloc, _PORTS[kind])
    if kind == "cluster" and parts.path not in ("", "/", "/0"):
        raise StoreURLError(f"a cluster has one database only, and the URL asks for {parts.path!r}: leave it out")
    if kind == "sentinel" and not ours.get("master"):
        raise StoreURLError("a URL of sentinels says what they call the servers: add ?master=name (often mymaster)")
    login = tuple((name.removeprefix("sentinel_"), value) for name, value in ours.items() if name in _OWN_OPTIONS[-2:])
    whole = Target(driver_url, layout, kind, nodes, ours.get("master", ""), login, wait)
    return whole._replace(url=whole.url_at(nodes[0]))


def _parse_nodes(netloc: str, port: int) -> tuple[Address, ...]:
    places = netloc.rpartition("@")[2].split(",")
    try:
        found = tuple((each.hostname or "", each.port or port) for each in (urlsplit(f"//{place}") for place in places))
    except ValueError as error:
        raise StoreURLError(f"{','.join(places)!r} is not a list of host:port ({error})") from error
    if not all(host for host, _ in found):
        raise StoreURLError(f"{','.join(places)!r} is not a list of host:port: one of them has no host")
    return found


def _parse_buckets(value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise BadName(f"buckets={value!r} is not possible: give a number from 1 to 256; 1 is the default")
    return int(value)


def _parse_wait(ours: dict[str, str], theirs: dict[str, str]) -> ReplicaWait:
    if not {"wait", "wait_timeout"} & ours.keys():
        return NO_WAIT
    try:
        wait = ReplicaWait(int(ours.get("wait", "0")), float(ours.get("wait_timeout", str(NO_WAIT.timeout))))
        patience = float(theirs.get("socket_timeout", str(SOCKET_TIMEOUT_SECONDS)))
    except ValueError as error:
        raise StoreURLError(f"wait and the timeouts are numbers, of replicas and of seconds ({error})") from error
    if wait.replicas < 0 or not 0 < wait.timeout < patience:
        raise StoreURLError(
            f"wait={wait.replicas} with wait_timeout={wait.timeout:g} is not possible: a number of replicas, and more "
            f"than 0 seconds but less than socket_timeout, which is {patience:g}"
        )
    return wait


def build_pool(pool_class: Any, url: str, retry: Any, **more: Any) -> Any:
    """A bounded pool for this URL. Nothing connects yet, but what is wrong with the URL is found here."""
    try:
        made = pool_class.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=SOCKET_TIMEOUT_SECONDS,
            socket_timeout=SOCKET_TIMEOUT_SECONDS,
            socket_connect_timeout=SOCKET_TIMEOUT_SECONDS,
            retry=retry,
            **more,
        )
        made.connection_class(**made.connection_kwargs)  # an option nobody knows would only surface at first use
    except (ValueError, TypeError) as error:
        raise StoreURLError(
            f"the URL's options are not what redis-py takes ({redact_secrets(str(error), url)}): "
            f"give those of its Redis.from_url, or our own {', '.join(_OWN_OPTIONS)}"
        ) from error
    return made
