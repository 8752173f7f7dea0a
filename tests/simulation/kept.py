"""Seeds that once failed: each found a defect, of the library or of the simulator. They are run for ever.

A change of the simulator gives a seed another history. Then the line stays as a seed like any other, and the defect is
held by the test that `docs/explanation/what-broke.md` names for it.
"""

from __future__ import annotations

from typing import NamedTuple

SHOP = "retrysafe.testing.simulation.shop:SHOP"
WEB = "tests.simulation.scenarios.web:WEB"
ELSEWHERE = "retrysafe.testing.simulation.local_shop:ELSEWHERE"
WEBHOOKS = "retrysafe.testing.simulation.webhook_shop:SCENARIO"
WAYS = "retrysafe.testing.simulation.ways_shop:SCENARIO"
LOCAL_DEPLOYMENTS = "tests.simulation.scenarios.local_deployments:LOCAL_DEPLOYMENTS"
INTERRUPTIONS = "tests.simulation.scenarios.interruptions:INTERRUPTIONS"

STRAIGHT = "tests.simulation.scenarios.straight:STRAIGHT"


class KeptSeed(NamedTuple):
    scenario: str
    seed: int
    found: str


KEPT = (
    KeptSeed(SHOP, 389, "a store that went away between two steps: 'nothing was done' was untrue"),
    KeptSeed(SHOP, 390, "simulator: a timer that is a rounding error too early was set again for ever"),
    KeptSeed(SHOP, 435, "simulator: a claim that landed after its process was killed counted as burnt"),
    KeptSeed(SHOP, 1008, "a slow copy of a claim that was refused landed when the key was free, and burnt it"),
    KeptSeed(SHOP, 2888756509, "a claim that was granted unheard, and swept while its process slept, burnt its key"),
    KeptSeed(SHOP, 2925301501, "an owner that renewed its claim after a sleep, and was then refused, burnt its key"),
    KeptSeed(SHOP, 2925303260, "simulator: the network's own copy of a claim that the store had refused"),
    KeptSeed(WEB, 52, "a client that sends to the old address after another has followed its redirect gets 422"),
    KeptSeed(WEB, 56, "a copy of a claim that lands minutes after its caller was answered: a person is asked"),
    KeptSeed(INTERRUPTIONS, 37, "the same, with callers that are cancelled"),
    KeptSeed(SHOP, 1173, "a step that was begun and announced was refused for ever"),
    KeptSeed(SHOP, 1053, "the same in a saga"),
    KeptSeed(SHOP, 20112, "a person's 'it did not happen' was not believed past the life of a key"),
    KeptSeed(SHOP, 20139, "the same, with a claim that was sent again beyond the last eight attempts"),
    KeptSeed(SHOP, 10557, "simulator: a person said 'it happened' of a charge that was refunded"),
    KeptSeed(SHOP, 20391, "simulator: a client sent again after a stored 502"),
    KeptSeed(SHOP, 20559, "simulator: a person whose clock drifts deployed twice at one look"),
    KeptSeed(WAYS, 2345, "an operation that was accepted was lost with a claim whose caller had left"),
    KeptSeed(WAYS, 2477, "the same"),
    KeptSeed(ELSEWHERE, 380684938, "simulator: an undo that did not look whether its step had happened"),
    KeptSeed(SHOP, 30164, "simulator: nobody deployed the code that could answer for a finished run"),
    KeptSeed(SHOP, 2756427154, "the task of an application began long after its claim, when its lease was over"),
    KeptSeed(SHOP, 2756425826, "simulator: a token that was granted again beyond the last eight, and asked once more"),
    KeptSeed(WEBHOOKS, 2756425691, "simulator: a provider that had forgotten a handler's key when it was called anew"),
    KeptSeed(WEBHOOKS, 30001242, "simulator: a handler of the inbox has declared no timeout that must fit its lease"),
    KeptSeed(SHOP, 1714291219, "simulator: the network's own copy of a claim that was told that another has the key"),
    KeptSeed(SHOP, 2005982691, "the same, of an operation"),
    KeptSeed(LOCAL_DEPLOYMENTS, 79, "clients of code that refused a run kept the worker, whose code fitted, from it"),
    KeptSeed(LOCAL_DEPLOYMENTS, 1228, "the same"),
    KeptSeed(SHOP, 28010011, "simulator: a store lost the answer of a key that may run again, and its client was told"),
    KeptSeed(SHOP, 28036405, "the same, after a failover before it that lost nothing"),
    KeptSeed(STRAIGHT, 148, "a submitted claim whose caller was cancelled, and whose reply was lost, burnt its key"),
    KeptSeed(STRAIGHT, 185, "the same"),
    KeptSeed(STRAIGHT, 255, "the same"),
    KeptSeed(STRAIGHT, 269, "the same, on a store with a full disk"),
    KeptSeed(STRAIGHT, 380, "the same"),
    KeptSeed(STRAIGHT, 389, "simulator: a waiter whose claim was overtaken counted as one that nobody woke"),
    KeptSeed(STRAIGHT, 2365, "the same, with a claim that was lost"),
    KeptSeed(STRAIGHT, 17089, "simulator: the same, measured from the arrival of another request"),
    KeptSeed(STRAIGHT, 2132, "simulator: an intruder's endpoint ran and failed, on a store that had lost its record"),
    KeptSeed(STRAIGHT, 4028, "simulator: a token that was granted again beyond the last eight, with its caller gone"),
    KeptSeed(STRAIGHT, 6369, "the same"),
    KeptSeed(SHOP, 40276184, "simulator: an undo too old to be sent again, and a person who asked for it for ever"),
    KeptSeed(
        STRAIGHT, 50003069, "more than eight callers of one key left at once, and a copy of the first was granted"
    ),
    KeptSeed(STRAIGHT, 40007435, "a request that was cancelled while it renewed its lease, before it began: burnt"),
    *(KeptSeed(STRAIGHT, seed, "the same rule, in an earlier state of the simulation") for seed in (106, 225, 231)),
)
