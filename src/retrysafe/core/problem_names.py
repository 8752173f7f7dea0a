"""The name of a problem: the last part of its `type`, the same in both forms and at every address of the pages."""

from __future__ import annotations

URN_PREFIX = "urn:retrysafe:problem:"
"""The other form of a `type`. Answers that were stored with it are replayed as they are (decision 77)."""


def problem_name(type_uri: str) -> str:
    """The name of a problem, from the `type` of its answer: `mismatch` for `https://…/problems/mismatch/` and for
    `urn:retrysafe:problem:mismatch`. Compare this, and you need not know where the API has its pages."""
    return type_uri.removeprefix(URN_PREFIX).rstrip("/").rpartition("/")[2]
