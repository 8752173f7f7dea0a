"""The rest of the contract on Amazon's own DynamoDB Local: a campaign, as it takes ten milliseconds for a request."""

from __future__ import annotations

import pytest

from retrysafe.testing.contract.expiry import *  # noqa: F403
from retrysafe.testing.contract.fence import *  # noqa: F403
from retrysafe.testing.contract.forget import *  # noqa: F403
from retrysafe.testing.contract.identity import *  # noqa: F403
from retrysafe.testing.contract.listing import *  # noqa: F403
from retrysafe.testing.contract.many import *  # noqa: F403
from retrysafe.testing.contract.settle import *  # noqa: F403
from tests.stores.test_dynamodb_local import do, local_url, table  # noqa: F401  (fixtures)

pytestmark = [
    pytest.mark.store("dynamodb-local"),
    pytest.mark.xdist_group("dynamodb-local"),
    pytest.mark.campaign,
]
