"""Seeds that once failed: each found a defect, of the library or of the simulator. They are run for ever.

A change of the simulator gives a seed another history. Then the line stays as a seed like any other, and the defect is
held by the test that `docs/explanation/what-broke.md` names for it.
"""

from __future__ import annotations

from typing import NamedTuple

SHOP = "retrysafe.testing.simulation.shop:SHOP"


class KeptSeed(NamedTuple):
    scenario: str
    seed: int
    found: str


KEPT = (
    KeptSeed(SHOP, 1173, "a step that was begun and announced was refused for ever"),
    KeptSeed(SHOP, 1053, "the same in a saga"),
    KeptSeed(SHOP, 20112, "a person's 'it did not happen' was not believed past the life of a key"),
    KeptSeed(SHOP, 20139, "the same, with a claim that was sent again beyond the last eight attempts"),
    KeptSeed(SHOP, 10557, "simulator: a person said 'it happened' of a charge that was refunded"),
    KeptSeed(SHOP, 20391, "simulator: a client sent again after a stored 502"),
    KeptSeed(SHOP, 20559, "simulator: a person whose clock drifts deployed twice at one look"),
    KeptSeed(SHOP, 30164, "simulator: nobody deployed the code that could answer for a finished run"),
)
