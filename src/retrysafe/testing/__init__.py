"""For testing a store of your own, and code that uses one. Needs pytest, and hypothesis for `stateful`.

A store is finished when the contract suite passes on it. In a test module of yours, define a fixture `do` and
take the functions of each topic (claim, fence, settle, expiry, identity, listing, many, forget, late, resume; and
outbox, if it has one):

    from retrysafe.testing import Do
    from retrysafe.testing.contract.claim import *

    @pytest.fixture
    def do():
        do = Do.sync(MyStore())
        yield do
        do.close()
"""

from retrysafe.testing.driver import Do, LoopThread
from retrysafe.testing.faults import POINTS, AsyncFaultStore, Crashed, Fault, FaultStore, Script

__all__ = ["POINTS", "AsyncFaultStore", "Crashed", "Do", "Fault", "FaultStore", "LoopThread", "Script"]
