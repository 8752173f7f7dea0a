"""What a store's real settings are worth. Each backend reads its own; the words and the verdict are the same for all.

A store promises what its server is set up to keep. `diagnose(url)` reads the settings (RELIABILITY I10) and says what
is left of the promise, and how to mend what takes it away.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from retrysafe.errors import UsageError
from retrysafe.stores.registry import find_backend

Label = Literal["exactly-once-capable", "at-most-once-until-failover", "best-effort"]

LABELS: dict[Label, str] = {
    "exactly-once-capable": "a claim that was acknowledged survives the death of any process, and of the machine",
    "at-most-once-until-failover": "acknowledged claims survive restarts, but a promoted replica may not have the last",
    "best-effort": "an acknowledged claim can be lost: good against retries, not enough where a duplicate costs money",
}
"""From the best to the least."""


class Finding(NamedTuple):
    """One setting, and what follows from it. `limit` is the best label that is possible with it."""

    setting: str
    value: str
    limit: Label
    why: str
    fix: str = ""
    """The exact command that mends it; empty where there is nothing to mend."""
    invariant: str = "I10"

    @property
    def fine(self) -> bool:
        return not self.fix


class Diagnosis(NamedTuple):
    """What was found out about one store."""

    store: str
    """Its name and version."""
    findings: tuple[Finding, ...]

    @property
    def label(self) -> Label:
        return worst_label(finding.limit for finding in self.findings)


@runtime_checkable
class Diagnosed(Protocol):
    """A backend that can say what its settings are worth. A third party's store need not."""

    def diagnose(self, url: str) -> Diagnosis: ...


def diagnose(url: str) -> Diagnosis:
    backend = find_backend(url)
    if not isinstance(backend, Diagnosed):
        name = backend.capabilities.name
        raise UsageError(
            f"the store {name!r} has no doctor: its backend needs a diagnose(url) that returns a Diagnosis"
        )
    return backend.diagnose(url)


def worst_label(labels: Iterable[Label]) -> Label:
    order = list(LABELS)
    return max(labels, key=order.index, default="exactly-once-capable")


def good(setting: str, value: object, why: str, *, invariant: str = "I10") -> Finding:
    return Finding(setting, str(value), "exactly-once-capable", why, "", invariant)


def bad(setting: str, value: object, limit: Label, why: str, fix: str, *, invariant: str = "I10") -> Finding:
    return Finding(setting, str(value), limit, why, fix, invariant)
