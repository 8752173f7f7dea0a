"""The contract suite through PgBouncer in transaction mode: two sessions of the server for all connections of the
store, so that each transaction may meet another session than the one before. Both colours, and batched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retrysafe.testing import Do
from retrysafe.testing.contract.claim import *  # noqa: F403
from retrysafe.testing.contract.expiry import *  # noqa: F403
from retrysafe.testing.contract.fence import *  # noqa: F403
from retrysafe.testing.contract.forget import *  # noqa: F403
from retrysafe.testing.contract.identity import *  # noqa: F403
from retrysafe.testing.contract.list_by_id import *  # noqa: F403
from retrysafe.testing.contract.listing import *  # noqa: F403
from retrysafe.testing.contract.many import *  # noqa: F403
from retrysafe.testing.contract.settle import *  # noqa: F403
from tests.postgres_family.conftest import Pooled
from tests.servers.lazy import note

pytestmark = [pytest.mark.store("pgbouncer"), pytest.mark.xdist_group("pgbouncer")]


@pytest.fixture(params=["sync", "async", "batched"])
def do(request: pytest.FixtureRequest, pooled: Pooled) -> Iterator[Do]:
    opened = pooled.empty(request.param)
    note(request, "pgbouncer", f"{pooled.label} (Debian package)")
    yield opened
    opened.close()
