"""Safeguards taken out, one at a time, and old defects put back. Each must be noticed by the rule that is named for it:
a checker that does not notice is a checker that is missing.

    moves.py        the rules of the record itself
    engine.py       claims that are sent again, leases, what a caller is told
    web.py          the middleware
    straight.py     the straight way of a request, and what both ways share
    operations.py   operations, and deployments between their attempts
    resuming.py     operations that go on later, or in the user's own database
    worker.py       the worker, and the walls between applications
    actors.py       local steps, outbox, jobs, consumers, webhooks
    jobs.py         outbox, jobs and webhooks once more: what is lost, tried for ever, or eaten
    what_broke.py   which ablation puts back each line of docs/explanation/what-broke.md, or why there is none

`make proof-ablations` writes docs/reference/ablations.md.
"""

from __future__ import annotations

from tests.simulation.ablations import actors, engine, jobs, moves, operations, resuming, straight, web, worker
from tests.simulation.ablations.base import Ablation, Situation, find_seed

ABLATIONS: tuple[Ablation, ...] = (
    *moves.ABLATIONS,
    *engine.ABLATIONS,
    *web.ABLATIONS,
    *straight.ABLATIONS,
    *operations.ABLATIONS,
    *resuming.ABLATIONS,
    *worker.ABLATIONS,
    *actors.ABLATIONS,
    *jobs.ABLATIONS,
)

__all__ = ["ABLATIONS", "Ablation", "Situation", "find_seed"]
