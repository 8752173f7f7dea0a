"""Fresh processes in milliseconds: children of a server that has imported everything and opened nothing.

Every test that starts such processes takes `FORKS` from here: a process has one such server, and the last list of
modules that anybody gave it counts for all.
"""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "tests.races.heats",
        "tests.races.racers",
        "tests.transactions.crashing",
        "tests.transactions.mongo_crashing",
        "tests.web.transactions.crashing",
    ]
)
