"""The doctor: what a store's actual settings mean for its promises. Each backend reads its own settings; findings and
labels are the same for all.

A store's durability depends on the settings of its server (I10). `diagnose(url)` reads them, says which promise is
left, and how to change a setting that breaks a promise.
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
"""The labels, from the strongest promise to the weakest."""


class Finding(NamedTuple):
    """One setting, and what it means. `limit` is the strongest label that is possible with this setting."""

    setting: str
    value: str
    limit: Label
    why: str
    fix: str = ""
    """The command that corrects the setting; empty if the setting is fine."""
    invariant: str = "I10"

    @property
    def fine(self) -> bool:
        return not self.fix


class Diagnosis(NamedTuple):
    """All findings on one store."""

    store: str
    """The server's name and version."""
    findings: tuple[Finding, ...]

    @property
    def label(self) -> Label:
        return worst_label(finding.limit for finding in self.findings)


@runtime_checkable
class Diagnosed(Protocol):
    """A backend with a doctor. It is optional."""

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
