"""Deterministic simulation: whole deployments, played by the seed, with the real code of retrysafe.

    world.py      one history: application hosts, workers, clients, a person, a store, a payment provider
    hosts.py      processes with clocks of their own; loop.py the event loop that runs them, in virtual time
    network.py    what becomes of each message; store.py and provider.py are at the other end
    watch.py      rules that are checked on every operation of the store; checkers.py those of a whole history
    shrink.py     makes a failing history short
    shop.py       the application of our own runs

`docs/howto/simulate.md` shows how to run an operation of your own.
"""

from retrysafe.testing.simulation.checkers import check
from retrysafe.testing.simulation.shrink import Story, shrink
from retrysafe.testing.simulation.world import AppHost, ClientReply, Handler, Outcome, Plan, Purchase, World

__all__ = ["AppHost", "ClientReply", "Handler", "Outcome", "Plan", "Purchase", "Story", "World", "check", "shrink"]
