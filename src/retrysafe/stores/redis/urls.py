"""Parses the URL of a Redis store. Our own options are taken out; redis-py parses the rest.

    redis://[[user]:password@]host[:port][/db]?prefix=…&buckets=…&wait=…&(anything redis-py knows)
    redis+cluster://[[user]:password@]host:port,host:port,…?…                any of the cluster's nodes
    redis+sentinel://[[user]:password@]host:port,host:port,…[/db]?master=name&…    the sentinels; user and password are
                                            for the servers, sentinel_username and sentinel_password for the sentinels

`rediss` instead of `redis` means TLS. `valkey` means the same as `redis`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from retrysafe.core.urls import redact_secrets
from retrysafe.errors import BadName, StoreURLError
from retrysafe.stores.redis.layout import DEFAULT_PREFIX, Layout
from retrysafe.stores.redis.replicas import NO_WAIT, ReplicaWait

SOCKET_TIMEOUT_SECONDS = 5.0
"""A server that hangs counts as down. Callers get an error after this time, before too many of them wait."""

MAX_CONNECTIONS = 50

CLUSTER_BUCKETS = 16
"""A few for each node of an ordinary cluster. More buckets spread the load better, but share fewer script runs."""

Kind = Literal["single", "cluster", "sentinel"]
Address = tuple[str, int]

_SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis"}
_KINDS: dict[str, Kind] = {"": "single", "cluster": "cluster", "sentinel": "sentinel"}
_PORTS: dict[Kind, int] = {"single": 6379, "cluster": 6379, "sentinel": 26379}
_OWN_OPTIONS = ("prefix", "buckets", "wait", "wait_timeout", "master", "sentinel_username", "sentinel_password")


class RedisLocation(NamedTuple):
    """A parsed store URL: the server's URL in redis-py's form, and the layout of our keys."""

    url: str
    """The URL of the server; for a cluster or sentinels, of the first node that is named."""
    layout: Layout
    kind: Kind = "single"
    nodes: tuple[Address, ...] = ()
    """The nodes of the cluster, or the sentinels, that the URL names."""
    master: str = ""
    """The name under which the sentinels watch the servers."""
    sentinel: tuple[tuple[str, str], ...] = ()
    """Username and password for the sentinels."""
    wait: ReplicaWait = NO_WAIT

    def url_at(self, address: Address) -> str:
        """The URL of another server, with the same credentials and options."""
        parts = urlsplit(self.url)
        account, at, _ = parts.netloc.rpartition("@")
        host, port = address
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return urlunsplit(parts._replace(netloc=f"{account}{at}{place}"))


def parse_url(url: str) -> RedisLocation:
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
    database = parts.path.removeprefix("/")
    if kind != "cluster" and database and not (database.isascii() and database.isdigit()):
        shown = redact_secrets(database, url)  # with a `/` in its password, a URL is split there
        raise StoreURLError(f"the database {shown!r} is no number: write {base}://host:port/0, or leave it out")
    driver_url = urlunsplit(parts._replace(scheme=_SCHEMES[base], query=urlencode(theirs)))
    wait = _parse_wait(ours, dict(theirs))
    if kind == "single":
        return RedisLocation(driver_url, layout, wait=wait)
    nodes = _parse_nodes(parts.netloc, _PORTS[kind])
    if kind == "cluster" and parts.path not in ("", "/", "/0"):
        raise StoreURLError(f"a cluster has one database only, and the URL asks for {parts.path!r}: leave it out")
    if kind == "sentinel" and not ours.get("master"):
        raise StoreURLError("a URL of sentinels says what they call the servers: add ?master=name (often mymaster)")
    login = tuple((name.removeprefix("sentinel_"), value) for name, value in ours.items() if name in _OWN_OPTIONS[-2:])
    whole = RedisLocation(driver_url, layout, kind, nodes, ours.get("master", ""), login, wait)
    return whole._replace(url=whole.url_at(nodes[0]))


def _parse_nodes(netloc: str, port: int) -> tuple[Address, ...]:
    hosts = netloc.rpartition("@")[2].split(",")
    try:
        found = tuple((each.hostname or "", each.port or port) for each in (urlsplit(f"//{host}") for host in hosts))
    except ValueError as error:
        raise StoreURLError(f"{','.join(hosts)!r} is not a list of host:port ({error})") from error
    if not all(host for host, _ in found):
        raise StoreURLError(f"{','.join(hosts)!r} is not a list of host:port: one of them has no host")
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
        socket_timeout = float(theirs.get("socket_timeout", str(SOCKET_TIMEOUT_SECONDS)))
    except ValueError as error:
        raise StoreURLError(f"wait and the timeouts are numbers, of replicas and of seconds ({error})") from error
    if wait.replicas < 0 or not 0 < wait.timeout < socket_timeout:
        raise StoreURLError(
            f"wait={wait.replicas} with wait_timeout={wait.timeout:g} is not possible: a number of replicas, and more "
            f"than 0 seconds but less than socket_timeout, which is {socket_timeout:g}"
        )
    return wait


def sentinel_options(target: RedisLocation, server_options: dict[str, Any]) -> dict[str, Any]:
    """The options of a connection to a sentinel: TLS and sockets as for the server, but a name and a password of its
    own."""
    timeouts = {"socket_timeout": SOCKET_TIMEOUT_SECONDS, "socket_connect_timeout": SOCKET_TIMEOUT_SECONDS}
    shared = {name: value for name, value in server_options.items() if name.startswith(("ssl", "socket"))}
    tls = {"ssl": True} if target.url.startswith("rediss:") else {}
    return {**timeouts, **shared, **tls, **dict(target.sentinel)}


def build_pool(pool_class: Any, url: str, retry: Any, **more: Any) -> Any:
    """Make a bounded pool for this URL. It does not connect yet, but a wrong option raises here."""
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
        made.connection_class(**made.connection_kwargs)  # otherwise an unknown option would raise at first use only
    except (ValueError, TypeError) as error:
        raise StoreURLError(
            f"the URL's options are not what redis-py takes ({redact_secrets(str(error), url)}): "
            f"give those of its Redis.from_url, or our own {', '.join(_OWN_OPTIONS)}"
        ) from error
    return made
