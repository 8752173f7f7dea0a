"""Policy: all choices for a route or function, as one immutable object. Each default is given with its reason."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal, Self, cast, get_args

from retrysafe.core.deprecation import warn_renamed
from retrysafe.core.times import duration_to_micros
from retrysafe.errors import PolicyError

Mode = Literal["observe", "optional", "required", "generate"]
BusyRule = Literal["conflict", "wait", "accepted"]
Abandoned = Literal["uncertain", "rerun"]
Start = Literal["request", "worker"]
FailureRule = Literal["store", "release", "success_only"]
Invalid = Literal["store", "withdraw"]
Final = Callable[[int, BaseException | None], bool]
"""`callable(status, exception)`: True if this ending is final and is stored."""

MINUTE = 60.0
HOUR = 60 * MINUTE
DAY = 24 * HOUR
FOREVER = math.inf


class DefaultSeconds(float):
    """A duration that nobody gave. Functions and operations have another default (`Policy.for_functions`)."""


class DefaultRule(str):
    """A rule that nobody gave."""


DEFAULT_RETENTION_SECONDS = DefaultSeconds(DAY)
DEFAULT_FAILURES = cast("FailureRule", DefaultRule("store"))
DEFAULT_LEASE_SECONDS = 60.0
"""How long an owner may be silent before another process may take over its work. The owner renews three times in each
lease, so two renewals in a row may fail, as when a store restarts. Work that a dead process left behind is free after a
minute. Everything that holds a lease has this default: policies, webhook receivers, inboxes and the worker's jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Durations are seconds, or a `timedelta`.

    mode       whether a key must be sent; `required`, because a write without a key is not protected
    busy       what a second caller gets while the first runs; `conflict`, because it holds no connection open
    wait       how long `busy="wait"` waits; 30 s, what most clients and proxies allow
    failures   which endings are final; `store`: every answer is stored and replayed, as Stripe does
    invalid    what happens to the key if no endpoint was entered; `store`: the framework's rejection is the result
    abandoned  what happens to a dead owner's record; `uncertain`: its outcome is not known, so an operator decides
    start      where an operation runs; `request`: in the request that sent it
    retention  how long an answer is replayed; 24 h on HTTP (72 h survive a bug deployed on Friday); for functions and
               operations, for ever, because a key like `charge-order-4127` is never used again
    lease      how long an owner may be silent; 60 s, three missed heartbeats
    max_body   request bodies above this are refused; 1 MiB
    max_answer answers above this leave a tombstone; 1 MiB
    """

    mode: Mode = "required"
    busy: BusyRule = "conflict"
    wait: float = 30.0
    failures: FailureRule | Final = DEFAULT_FAILURES
    invalid: Invalid = "store"
    abandoned: Abandoned = "uncertain"
    start: Start = "request"
    retention: float = DEFAULT_RETENTION_SECONDS
    lease: float = DEFAULT_LEASE_SECONDS
    max_body: int = 1 << 20
    max_answer: int = 1 << 20

    def __new__(cls, **given: Any) -> Self:
        _check_fields(given)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, literal in _LITERALS.items():
            value = getattr(self, name)
            if not (value in get_args(literal) or (name == "failures" and callable(value))):
                choices = " | ".join(map(repr, get_args(literal)))
                more = " | callable(status, exception)" if name == "failures" else ""
                raise PolicyError(name, value, f"choose one of {choices}{more}")
        for name, (least, fix) in _DURATIONS.items():
            object.__setattr__(self, name, _check_seconds(name, getattr(self, name), least, fix))
        for name in ("max_body", "max_answer"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise PolicyError(name, value, "give a size in bytes, zero or more")

    def but(self, **changes: Any) -> Self:
        """Deprecated: `replace`."""
        warn_renamed("Policy.but", "Policy.replace")
        return self.replace(**changes)

    def replace(self, **changes: Any) -> Self:
        """This policy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def for_functions(self) -> Self:
        """This policy for functions and operations: keys are kept for ever, and an exception is not a result, unless
        the policy says otherwise."""
        changes: dict[str, Any] = {}
        if isinstance(self.retention, DefaultSeconds):
            changes["retention"] = FOREVER
        if isinstance(self.failures, DefaultRule):
            changes["failures"] = "release"
        return self.replace(**changes) if changes else self

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Policy:
        """A published contract by name: stripe_v1, stripe_v2, ietf, create_payment, function."""
        if name not in PRESETS:
            raise PolicyError("preset", name, f"the presets are {', '.join(PRESETS)}")
        return PRESETS[name].replace(**changes)

    @property
    def heartbeat(self) -> float:
        """Seconds between two renewals: a third of the lease, so that two may fail before another owner takes over."""
        return self.lease / 3

    @property
    def lease_micros(self) -> int:
        return duration_to_micros(self.lease)

    @property
    def retention_micros(self) -> int:
        return duration_to_micros(self.retention)

    def final(self, status: int, exception: BaseException | None) -> bool:
        """True if this ending is stored and replayed; False if the key is released, so that a retry runs again."""
        if callable(self.failures):
            return bool(self.failures(status, exception))
        if self.failures == "store":
            return True
        if self.failures == "release":
            return exception is None and status < 500
        return exception is None and 200 <= status < 300


_FIELDS = tuple(field.name for field in fields(Policy))

_MEANT = {"ttl": "retention", "expires": "retention", "expiry": "retention", "timeout": "lease", "on_busy": "busy"}
"""Names that other packages have for a field."""


def _check_fields(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if name not in _FIELDS:
            hint = f"did you mean {_MEANT[name]}? The" if name in _MEANT else "the"
            raise PolicyError(name, value, f"there is no such field; {hint} fields are {', '.join(_FIELDS)}")


_LITERALS: dict[str, Any] = {
    "mode": Mode,
    "busy": BusyRule,
    "failures": FailureRule,
    "invalid": Invalid,
    "abandoned": Abandoned,
    "start": Start,
}

_MAX_DURATION_SECONDS = 10**12
"""About 31,000 years. Longer durations are cut to this."""

_DURATIONS: dict[str, tuple[float, str]] = {
    "wait": (0.0, "give seconds or a timedelta, zero or more"),
    "retention": (1.0, "give at least one second; an answer that is not kept cannot be replayed"),
    "lease": (0.05, "give at least 0.05 s; a lease shorter than a round trip is never held"),
}


_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _guess_seconds(text: str) -> int:
    """The seconds that somebody meant who wrote `24h` or `5 minutes`; 60 if the text says nothing."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*(s|m|h|d|w)?[a-z]*\s*", text.lower())
    return (int(found[1]) * _UNIT_SECONDS[found[2] or "s"] or 60) if found else 60


def _check_seconds(name: str, value: object, least: float, fix: str) -> float:
    if isinstance(value, DefaultSeconds):
        return value
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        example = _guess_seconds(value)
        raise PolicyError(name, value, f"give a number of seconds, such as {name}={example}, or a timedelta")
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:  # not `<`: NaN is neither
        raise PolicyError(name, value, fix)
    value = min(value, _MAX_DURATION_SECONDS) if isinstance(value, int) else value  # a float cannot hold every int
    if math.isinf(value) and name != "retention":
        raise PolicyError(name, value, "only retention may be for ever")
    return float(value)


PRESETS: dict[str, Policy] = {
    # Every answer of the handler is final, 500 included: a retry never changes an outcome. A rejection by the framework
    # before the handler began is not kept.
    "stripe_v1": Policy(failures="store", invalid="withdraw", retention=DAY),
    # Failed work is resumed until it is complete. Meant for operations, which can resume.
    "stripe_v2": Policy(failures="release", invalid="withdraw", retention=30 * DAY),
    # As the IETF draft says: the earlier result is replayed, success or error; 409 while the first request runs.
    "ietf": Policy(failures="store", busy="conflict", retention=DAY),
    # A declined card is an answer, a crash is not.
    "create_payment": Policy(failures="release", retention=3 * DAY),
    # A key like `charge-order-4127` is never used again. An exception is not a result unless the user says so.
    "function": Policy(failures="release", retention=FOREVER, busy="wait"),
}
