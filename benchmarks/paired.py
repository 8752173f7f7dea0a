"""Paired differences: how much more one state costs than another, on a machine that has other work beside.

A round measures every state twice, there and back (A B C C B A): what slows the machine down steadily slows both ends
of a round. Each round gives one difference from the base. Their median is the finding. The quartiles say how far rounds
differ. A second process of the base is the control: it does the very same work, so what it seems to cost is noise, and
a smaller finding than that is none.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


class Difference(NamedTuple):
    """Differences of rounds, or of starts, from the base, in per cent of the base."""

    median: float
    low: float
    """The first quartile."""
    high: float
    """The third quartile."""

    def __str__(self) -> str:
        return f"{self.median:+.2f} % [{self.low:+.2f} .. {self.high:+.2f}]"


def run_rounds(states: Sequence[str], rounds: int, measure: Callable[[str], float]) -> Iterator[dict[str, float]]:
    """For each round what each state took, the mean of its two slices. Each round begins with another state: the one at
    the turn has two slices in a row, finds the caches warm, and seems about 1 % cheaper than one in the middle."""
    for number in range(rounds):
        first = number % len(states)
        order = (*states[first:], *states[:first])
        taken = dict.fromkeys(states, 0.0)
        for state in (*order, *reversed(order)):
            taken[state] += measure(state) / 2
        yield taken


def compare_rounds(rounds: Sequence[dict[str, float]], state: str, base: str) -> Difference:
    """Pure. The difference of each round from its own base: what slows one round down is in both."""
    return spread([100 * (taken[state] - taken[base]) / taken[base] for taken in rounds])


def compare_starts(starts: Sequence[Sequence[dict[str, float]]], state: str, base: str) -> Difference:
    """Pure. The rounds of each start give one difference. Processes of the same code differ by up to 6 %, for as long
    as they live: rounds of one start are no independent findings, so the quartiles are those of the starts."""
    return spread([compare_rounds(rounds, state, base).median for rounds in starts])


def spread(found: list[float]) -> Difference:
    """Pure. The median and the quartiles."""
    low, median, high = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return Difference(median, low, high)
