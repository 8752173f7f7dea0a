"""Parses the URL of a DynamoDB store.

    dynamodb://[key:secret@]region/table?endpoint=…&skew=1&attempts=3&timeout=5&ttl=on&backups=off

Without `key:secret@` the SDK finds credentials in its usual way: environment, profile, role of the machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from retrysafe.core.times import duration_to_micros
from retrysafe.core.urls import safe_url
from retrysafe.errors import BadName, StoreURLError
from retrysafe.stores.base import Capabilities

CAPABILITIES = Capabilities(
    name="dynamodb", durable=True, shared=True, transactions=True, clock="host", backlog="index"
)

DEFAULT_TABLE = "retrysafe"
_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_REGION = re.compile(r"[a-z0-9-]+")
_EXAMPLE = "dynamodb://eu-west-1/retrysafe"
_OPTIONS = ("endpoint", "table", "skew", "attempts", "timeout", "ttl", "backups")
_SWITCH_VALUES = {"on": True, "off": False}


@dataclass(frozen=True, slots=True)
class DynamoLocation:
    """A parsed store URL: where the table is, and how to connect to it."""

    url: str
    """The URL without the secret, for messages."""
    region: str
    table: str
    endpoint: str | None = None
    access: tuple[str, str] | None = None
    skew: int = duration_to_micros(1.0)
    """The allowed difference between two machines' clocks, in microseconds. DynamoDB gives no access to a clock. So a
    lease counts as lapsed, and a record as expired, only after this much more time: a machine whose clock is ahead must
    not take the key of an owner that is alive."""
    attempts: int = 3
    """How often the SDK sends a request. If an attempt meets the result of an earlier one, our token shows it."""
    timeout: float = 5.0
    """Seconds without an answer before a request counts as lost."""
    ttl: bool = True
    """True if `migrate` turns on the table's time to live: DynamoDB deletes long expired records, at no cost."""
    backups: bool = False
    """True if `migrate` turns on point-in-time recovery, which costs by the gigabyte."""

    def client_options(self) -> dict[str, Any]:
        """The arguments of the SDK's client, beside its Config."""
        found: dict[str, Any] = {"region_name": self.region, "endpoint_url": self.endpoint}
        if self.access is not None:
            found["aws_access_key_id"], found["aws_secret_access_key"] = self.access
        return found

    def client_config(self) -> dict[str, Any]:
        """The arguments of botocore's Config."""
        return {
            "connect_timeout": self.timeout,
            "read_timeout": self.timeout,
            "retries": {"mode": "standard", "total_max_attempts": self.attempts},
            "max_pool_connections": 50,
            "tcp_keepalive": True,
            "parameter_validation": False,  # a tenth of a request's CPU time, and DynamoDB validates anyway
        }


def parse_url(url: str) -> DynamoLocation:
    parts = urlsplit(url)
    shown = safe_url(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise StoreURLError(f"{name}= in {shown!r} is no option here; there are {', '.join(_OPTIONS)}")
    region = parts.netloc.rpartition("@")[2]
    if not _REGION.fullmatch(region):
        raise StoreURLError(f"{shown!r} names no region: write one like {_EXAMPLE}")
    return DynamoLocation(
        url=shown,
        region=region,
        table=check_table_name(options.get("table") or parts.path.strip("/") or DEFAULT_TABLE),
        endpoint=_check_endpoint(options.get("endpoint"), shown),
        access=(unquote(parts.username), unquote(parts.password or "")) if parts.username else None,
        skew=duration_to_micros(_parse_number(options, "skew", 1.0, shown)),
        attempts=max(1, int(_parse_number(options, "attempts", 3, shown))),
        timeout=_parse_number(options, "timeout", 5.0, shown),
        ttl=_parse_switch(options, "ttl", True, shown),
        backups=_parse_switch(options, "backups", False, shown),
    )


def check_table_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadName(f"{name!r} cannot be a DynamoDB table: 3 to 255 letters, digits and the characters _ . -")
    return name


def _check_endpoint(given: str | None, shown: str) -> str | None:
    if given is not None and not given.startswith(("http://", "https://")):
        raise StoreURLError(f"endpoint={given} in {shown!r} is no address: write endpoint=http://127.0.0.1:8000")
    return given


def _parse_number(options: dict[str, str], name: str, default: float, shown: str) -> float:
    try:
        found = float(options.get(name, default))
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise StoreURLError(f"{name}={options[name]} in {shown!r} is not possible: give a number, {default:g} is usual")
    return found


def _parse_switch(options: dict[str, str], name: str, default: bool, shown: str) -> bool:
    given = options.get(name)
    if given is None:
        return default
    if given not in _SWITCH_VALUES:
        raise StoreURLError(f"{name}={given} in {shown!r} is neither on nor off")
    return _SWITCH_VALUES[given]
