from __future__ import annotations

import pytest

from retrysafe.core.jobs import Job
from retrysafe.errors import UsageError


def test_a_payload_is_bytes_and_can_be_decoded() -> None:
    job = Job("0" * 32, "user.created", b'{"email": "ada@example.com"}')
    assert isinstance(job.payload, bytes)
    assert job.json() == {"email": "ada@example.com"}


def test_what_was_staged_as_bytes_need_not_be_json() -> None:
    with pytest.raises(UsageError, match=r"user\.created.*job\.payload"):
        Job("0" * 32, "user.created", b"\xff\x00").json()
