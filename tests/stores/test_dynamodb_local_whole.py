"""The rest of the contract on Amazon's own DynamoDB Local, in both colours: part of the proof."""

from __future__ import annotations

import pytest

from retrysafe.testing import Do
from retrysafe.testing.contract.expiry import *  # noqa: F403
from retrysafe.testing.contract.fence import *  # noqa: F403
from retrysafe.testing.contract.forget import *  # noqa: F403
from retrysafe.testing.contract.identity import *  # noqa: F403
from retrysafe.testing.contract.listing import *  # noqa: F403
from retrysafe.testing.contract.many import *  # noqa: F403
from retrysafe.testing.contract.settle import *  # noqa: F403
from tests.kept import DynamoTable
from tests.servers.lazy import note
from tests.stores.test_dynamodb_local import LABEL, local_url, table

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.store("dynamodb-local"),
    pytest.mark.xdist_group("dynamodb-local"),
]

__all__ = ["local_url", "table"]


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest, table: DynamoTable) -> Do:
    note(request, "dynamodb-local", LABEL)
    return table.empty(request.param)
