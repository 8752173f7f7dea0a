"""Deterministic simulation: whole deployments, played by the seed, with the real code of retrysafe.

    world.py        one history: application hosts, workers, clients, a person, a store, a payment provider
    plan.py         what a seed decides before it runs; faults.py what goes wrong with hosts, and when
    scenario.py     the application under test, with the actors and checks that it brings; application.py what it sees
    stage.py        what everything in a history shares; hosts.py processes with clocks of their own; loop.py the event
                    loop that runs them, in virtual time; virtual.py the clocks and the randomness that they see
    network.py      what becomes of each message; store.py and provider.py are at the other end
    fleet.py        the application's processes; clients.py who sends requests; people.py who resolves what is uncertain
    watch.py        rules that are checked on every operation of the store; checkers.py those of a whole history
    outcome.py      what a history left; shrink.py makes a failing one short
    campaign.py     many histories in several processes; tally.py what they met; progress.py what of them is done
    declared.py     what is read of a function once, although each process that starts declares it anew
    shop.py         the application of our own runs

`docs/howto/simulate.md` shows how to run an operation of your own.
"""

from retrysafe.testing.simulation.application import AppHost, ClientReply, Handler, Purchase
from retrysafe.testing.simulation.checkers import check
from retrysafe.testing.simulation.outcome import Outcome
from retrysafe.testing.simulation.plan import Plan
from retrysafe.testing.simulation.scenario import Actor, Scenario
from retrysafe.testing.simulation.shrink import Story, shrink
from retrysafe.testing.simulation.stage import SimulationStage
from retrysafe.testing.simulation.world import World

__all__ = [
    "Actor",
    "AppHost",
    "ClientReply",
    "Handler",
    "Outcome",
    "Plan",
    "Purchase",
    "Scenario",
    "SimulationStage",
    "Story",
    "World",
    "check",
    "shrink",
]
