"""The contract suite on PostgreSQL 14 to 17, in both colours. 18 is the server of every other test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retrysafe.stores.diagnosis import diagnose
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
from tests.opening import COLOURS
from tests.postgres_family.conftest import Versions, version_marks
from tests.servers.lazy import note
from tests.servers.postgres_versions import MAJORS


@pytest.fixture(
    params=[
        pytest.param((major, colour), id=f"{major}-{colour}", marks=version_marks(major))
        for major in MAJORS
        for colour in COLOURS
    ]
)
def do(request: pytest.FixtureRequest, versions: Versions) -> Iterator[Do]:
    major, colour = request.param
    opened = versions.tables(major).empty(colour)
    note(request, f"postgres {major}", versions.labels[major])
    yield opened
    opened.close()


@pytest.mark.parametrize("major", [pytest.param(major, marks=version_marks(major)) for major in MAJORS])
def test_it_is_the_version_it_is_said_to_be(major: int, versions: Versions) -> None:
    tables = versions.tables(major)
    tables.empty("sync")
    found = diagnose(tables.url)
    assert found.store.startswith(f"PostgreSQL {major}.")
    assert [one.setting for one in found.findings if not one.fine] == ["fsync"], "which is off here on purpose"
