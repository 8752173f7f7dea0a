"""What many histories met: counts that are added up, and the report of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from retrysafe.testing.simulation.outcome import Outcome


@dataclass(slots=True)
class Tally:
    """What some histories met. Tallies are added."""

    histories: int = 0
    steps: int = 0
    messages: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    circumstances: Counter[str] = field(default_factory=Counter)
    failing: dict[int, str] = field(default_factory=dict)
    """The first problem of each failing seed."""
    max_rss_mib: int = 0

    @property
    def rate(self) -> float:
        """Histories for each second that one core was busy with them."""
        return self.histories / max(self.cpu_seconds, 1e-9)

    def add(self, other: Tally) -> None:
        for name in ("histories", "steps", "messages", "virtual_seconds", "cpu_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("kinds", "faults", "circumstances"):
            getattr(self, name).update(getattr(other, name))
        self.failing.update(other.failing)
        self.max_rss_mib = max(self.max_rss_mib, other.max_rss_mib)

    def count(self, seed: int, outcome: Outcome, messages: int, problems: list[str]) -> None:
        self.histories += 1
        self.steps += outcome.steps
        self.messages += messages
        self.virtual_seconds += outcome.seconds
        self.kinds.update(purchase.kind for purchase in outcome.purchases)
        self.faults.update(outcome.faults.values())
        self.faults.update(outcome.host_faults)
        self.circumstances.update(name_circumstances(outcome))
        if problems:
            self.failing[seed] = problems[0]


def name_circumstances(outcome: Outcome) -> Iterator[str]:
    """The kinds of histories that this one belongs to."""
    plan = outcome.plan
    yield f"{plan.hosts} hosts"
    for name, holds in (
        ("two applications", outcome.neighbour is not None),
        ("a deployment", "deployment" in outcome.host_faults),
        ("a double click", plan.senders > 1),
        ("clocks that are wrong", bool(plan.skew or plan.drift)),
        ("a short memory of the provider", plan.provider_memory < 86_400.0),
        ("a lossy store", plan.is_lossy),
        ("no fault at all", not outcome.faults and not outcome.host_faults),
    ):
        if holds:
            yield name


def format_report(tally: Tally, seconds: float, jobs: int, reproduce: str) -> str:
    """For a person. `reproduce` is a line with `{seed}` in it that plays one history again."""
    lines = [
        f"{tally.histories:,} histories in {seconds:,.0f} s on {jobs} process{'es' if jobs > 1 else ''}, "
        f"{len(tally.failing)} with violations",
        f"{tally.rate:,.0f} histories per CPU second and core; each has "
        f"{_mean(tally.steps, tally):,.0f} steps, {_mean(tally.messages, tally):,.0f} messages and "
        f"{_mean(tally.virtual_seconds, tally):,.0f} virtual seconds; {tally.max_rss_mib} MiB at most",
        *_format_counts("purchases by kind", tally.kinds),
        *_format_counts("histories with", tally.circumstances),
        *_format_counts("faults met", tally.faults),
    ]
    for seed, problem in sorted(tally.failing.items())[:20]:
        lines += [f"FAILED {problem}", f"    {reproduce.format(seed=seed)}"]
    return "\n".join(lines)


def _mean(value: float, tally: Tally) -> float:
    return value / max(tally.histories, 1)


def _format_counts(title: str, counts: Mapping[str, int]) -> list[str]:
    listed = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
    return [f"{title}: {listed}"] if listed else []
