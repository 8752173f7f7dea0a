"""What a Redis or Valkey server's settings are worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from retrysafe.errors import MissingDriver, StoreUnavailable
from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, good
from retrysafe.stores.redis.urls import Target

UNKNOWN = "unknown"
ASKED = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "min-replicas-to-write")

Settings = Mapping[str, Any]


def diagnose(at: Target) -> Diagnosis:
    try:
        import redis
    except ImportError as error:
        raise MissingDriver("Redis", "redis", "redis") from error
    client = redis.Redis.from_url(at.url, decode_responses=True, socket_timeout=5, socket_connect_timeout=5)
    try:
        info = dict(client.info("everything"))
        config = {name: _config(client, name) for name in ASKED}
    except redis.RedisError as error:
        raise StoreUnavailable(f"the server cannot be asked: {error}") from error
    finally:
        client.close()
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", UNKNOWN)
    return Diagnosis(f"{name} {version}", tuple(judge({**info, **config, "buckets": at.layout.buckets})))


def _config(client: Any, name: str) -> str:
    """Managed servers often refuse CONFIG: then it is not known, and what is not known is not promised."""
    import redis

    try:
        return str(client.config_get(name).get(name, UNKNOWN))
    except redis.ResponseError:
        return UNKNOWN


def judge(settings: Settings) -> Iterator[Finding]:
    yield _persistence(settings)
    yield _eviction(settings)
    yield _role(settings)
    yield _replicas(settings)
    if settings.get("cluster_enabled"):
        yield _cluster(settings)


def _persistence(settings: Settings) -> Finding:
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


def _eviction(settings: Settings) -> Finding:
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


def _role(settings: Settings) -> Finding:
    if settings.get("role") == "master":
        return good("role", "primary", "it takes claims", invariant="I1")
    return bad(
        "role", "replica", "best-effort", "a replica takes no claims", "give the primary's address", invariant="I1"
    )


def _replicas(settings: Settings) -> Finding:
    count = int(settings.get("connected_slaves", 0))
    if not count:
        return good("replicas", "none", "there is no failover that could lose anything")
    why = "replication is asynchronous: a replica that is promoted may lack the last claims"
    fix = (
        "none on the server: where a duplicate costs money keep the keys in PostgreSQL, or in a Redis without failover"
    )
    return bad("replicas", str(count), "at-most-once-until-failover", why, fix)


def _cluster(settings: Settings) -> Finding:
    buckets = settings["buckets"]
    if buckets > 1:
        return good("cluster", f"{buckets} buckets", "the keys are spread over the nodes", invariant="I1")
    fix = "add ?buckets=16 to the URL before the first key is stored"
    return good("cluster", "1 bucket", f"correct, but all keys live on one node; {fix}", invariant="I1")
