"""Tools to test your own store, and code that uses a store. They need pytest, and `stateful` needs hypothesis.

A store is finished when it passes the contract suite. In your test module, define a fixture `do` and import the test
functions of each topic (claim, fence, settle, expiry, identity, listing, backlog, many, forget, late, resume; and
list_by_id, list_by_key, outbox and job_backlog, if the store declares `lists_by_id`, `finds_keys` or `outbox`):

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
