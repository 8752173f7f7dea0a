"""`retrysafe doctor` for Redis and Valkey: read a server's settings and say what they guarantee.

The URL may name one server, a cluster, or servers that sentinels watch. In a cluster every primary is checked and the
weakest settings count, because each primary holds a share of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retrysafe.errors import MissingDriver, StoreUnavailable
from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, good, worst_label
from retrysafe.stores.redis.slots import Address, Topology
from retrysafe.stores.redis.urls import SOCKET_TIMEOUT_SECONDS, RedisLocation

UNKNOWN = "unknown"
CONFIG_NAMES = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "min-replicas-to-write")

Settings = Mapping[str, Any]


def diagnose(at: RedisLocation) -> Diagnosis:
    try:
        import redis
    except ImportError as error:
        raise MissingDriver("Redis", "redis", "redis") from error
    try:
        found = [(address, _read_settings(at, url)) for address, url in _find_servers(at)]
    except redis.RedisError as error:
        raise StoreUnavailable(f"the server's settings cannot be read: {error}") from error
    _, first = found[0]
    name = "Valkey" if "valkey_version" in first else "Redis"
    version = first.get("valkey_version") or first.get("redis_version", UNKNOWN)
    kind = {"cluster": f"cluster of {name}", "sentinel": f"{name} behind sentinels"}.get(at.kind, name)
    verdicts = [(address, tuple(check_settings(settings))) for address, settings in found]
    return Diagnosis(f"{kind} {version}", tuple(_merge_findings(verdicts)))


def _find_servers(at: RedisLocation) -> Iterator[tuple[Address, str]]:
    """The servers that accept claims, with their URLs."""
    if at.kind == "single":
        yield ("", 0), at.url
    elif at.kind == "sentinel":
        from retrysafe.stores.redis.sync import open_pool

        pool = open_pool(at)
        try:
            address: Address = pool.connection_kwargs["connection_pool"].get_master_address()
        finally:
            pool.disconnect()
        yield address, at.url_at(address)
    else:
        for address in _find_primaries(at):
            yield address, at.url_at(address)


def _find_primaries(at: RedisLocation) -> list[Address]:
    import redis

    topology = Topology(at.nodes)
    error: Exception = StoreUnavailable("the cluster has no primary")
    for address in at.nodes:
        try:
            with _open_client(at.url_at(address)) as client:
                # Topology.learn wants the raw reply, so redis-py's own parsing is turned off.
                client.set_response_callback("CLUSTER SLOTS", lambda reply, **_: reply)
                topology.learn(client.execute_command("CLUSTER SLOTS"), address)
                return topology.primaries()
        except redis.RedisError as failed:
            error = failed
    raise error


def _open_client(url: str) -> Any:
    import redis

    return redis.Redis.from_url(
        url, decode_responses=True, socket_timeout=SOCKET_TIMEOUT_SECONDS, socket_connect_timeout=SOCKET_TIMEOUT_SECONDS
    )


def _read_settings(at: RedisLocation, url: str) -> Settings:
    with _open_client(url) as client:
        info = dict(client.info("everything"))
        config = {name: _read_config(client, name) for name in CONFIG_NAMES}
        if info.get("cluster_enabled"):
            info |= client.execute_command("CLUSTER INFO")
    return {**info, **config, "buckets": at.layout.buckets, "wait": at.wait.replicas}


def _merge_findings(verdicts: Sequence[tuple[Address, tuple[Finding, ...]]]) -> Iterator[Finding]:
    """One finding for each setting: the one of the weakest server. The server is named if the values differ."""
    names = dict.fromkeys(finding.setting for _, findings in verdicts for finding in findings)
    for name in names:
        found = [(address, one) for address, findings in verdicts for one in findings if one.setting == name]
        limit = worst_label(one.limit for _, one in found)
        rank = [(one.limit != limit, one.fine) for _, one in found]
        (host, port), chosen = found[rank.index(min(rank))]
        differ = len({one.value for _, one in found}) > 1
        yield chosen._replace(value=f"{chosen.value} ({host}:{port})") if differ else chosen


def _read_config(client: Any, name: str) -> str:
    """Read one CONFIG value. Managed servers often refuse CONFIG; the value is then UNKNOWN, which guarantees
    nothing."""
    import redis

    try:
        return str(client.config_get(name).get(name, UNKNOWN))
    except redis.ResponseError:
        return UNKNOWN


def check_settings(settings: Settings) -> Iterator[Finding]:
    yield _check_persistence(settings)
    yield _check_eviction(settings)
    yield _check_role(settings)
    yield _check_replicas(settings)
    if settings.get("cluster_enabled"):
        yield _check_cluster(settings)


def _check_persistence(settings: Settings) -> Finding:
    on, sync = settings["appendonly"], settings["appendfsync"]
    if UNKNOWN in (on, sync):
        why = "the server does not say (CONFIG is refused), and what is not known is not promised"
        return bad(
            "persistence", UNKNOWN, "best-effort", why, "ask your provider for appendonly yes, appendfsync always"
        )
    if on != "yes":
        why = "everything since the last snapshot is lost with the process"
        fix = "CONFIG SET appendonly yes; CONFIG SET appendfsync always; CONFIG REWRITE"
        return bad("persistence", "no append-only file", "best-effort", why, fix)
    if sync != "always":
        why = "a power cut loses what was acknowledged in the last second, or more"
        fix = "CONFIG SET appendfsync always; CONFIG REWRITE"
        return bad("persistence", f"appendfsync {sync}", "best-effort", why, fix)
    return good("persistence", "appendfsync always", "a claim is on disk before it is acknowledged")


def _check_eviction(settings: Settings) -> Finding:
    limit, policy = settings["maxmemory"], settings["maxmemory-policy"]
    if policy == "noeviction" or limit == "0":
        return good("maxmemory-policy", policy, "a full server refuses new claims, and forgets none")
    if policy == UNKNOWN:
        fix = "ask your provider for maxmemory-policy noeviction"
        return bad("maxmemory-policy", UNKNOWN, "best-effort", "a full server may forget living keys", fix)
    fix = "CONFIG SET maxmemory-policy noeviction; CONFIG REWRITE"
    return bad(
        "maxmemory-policy", policy, "best-effort", "a full server forgets living keys, which then run again", fix
    )


def _check_role(settings: Settings) -> Finding:
    if settings.get("role") == "master":
        return good("role", "primary", "it takes claims", invariant="I1")
    return bad(
        "role", "replica", "best-effort", "a replica takes no claims", "give the primary's address", invariant="I1"
    )


def _check_replicas(settings: Settings) -> Finding:
    count, wait = int(settings.get("connected_slaves", 0)), int(settings.get("wait", 0))
    shown = f"{count}, of which {wait} are waited for" if wait else str(count) if count else "none"
    if wait > count:
        why = f"every operation ends as unclear: wait={wait}, and {count} replicas are connected"
        fix = f"connect as many replicas, or put ?wait={count} into the URL"
        return bad("replicas", shown, "exactly-once-capable", why, fix)
    if not count:
        return good("replicas", shown, "there is no failover that could lose anything")
    if wait == count:
        return good("replicas", shown, "a claim is on every replica before it is acknowledged: any may be promoted")
    if wait:
        why = f"the {count - wait} that are not waited for may lack the last claims, and any may be promoted"
        return bad("replicas", shown, "at-most-once-until-failover", why, f"put ?wait={count} into the URL")
    why = "replication is asynchronous: a replica that is promoted may lack the last claims"
    fix = f"put ?wait={count} into the URL; or keep the keys in PostgreSQL, or in a Redis without failover"
    return bad("replicas", shown, "at-most-once-until-failover", why, fix)


def _check_cluster(settings: Settings) -> Finding:
    buckets, state = settings["buckets"], settings.get("cluster_state", "ok")
    if state != "ok":
        fix = "look at CLUSTER NODES; give every slot a living primary"
        return bad("cluster", state, "exactly-once-capable", "it refuses claims", fix, invariant="I1")
    if buckets > 1:
        return good("cluster", f"{buckets} buckets", "the keys are spread over the nodes", invariant="I1")
    fix = "add ?buckets=16 to the URL before the first key is stored"
    return good("cluster", "1 bucket", f"correct, but all keys live on one node; {fix}", invariant="I1")
