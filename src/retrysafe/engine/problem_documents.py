"""Problem documents (RFC 9457): what all our own answers to clients have in common, over HTTP and in stored answers.

The texts of the web's problems are in web/problems.py, those of operations in operations/endings.py.
"""

from __future__ import annotations

import os
from typing import Any, Literal, NamedTuple

from retrysafe.core.problem_names import URN_PREFIX
from retrysafe.errors import UsageError

DOCS_URL = os.environ.get("RETRYSAFE_DOCS_URL") or "https://retrysafe.readthedocs.io/problems"
"""The folder of problem pages. `type` and `Link: rel="describedby"` of an answer are the address of its page there. The
environment variable is for all answers of a process, those of webhooks and operations too; `docs=` is for one
middleware."""

TypeForm = Literal["address", "urn"]


def read_type_form(value: str) -> TypeForm:
    """The form of `type`: the address of the page, or the URN that was sent before (decision 77)."""
    if value not in ("", "address", "urn"):
        raise UsageError(f"RETRYSAFE_PROBLEM_TYPES={value!r}: give 'address' (the default) or 'urn'")
    return "urn" if value == "urn" else "address"


TYPE_FORM = read_type_form(os.environ.get("RETRYSAFE_PROBLEM_TYPES", ""))


class Problem(NamedTuple):
    """One kind of answer. `retry_same_key`: a retry is useful. `safe_new_key`: nothing of the work is left, so a new
    key cannot do it twice."""

    code: str
    """The field of `Codes` with its status. Empty if `status` says it."""
    anchor: str
    title: str
    detail: str
    retry_same_key: bool
    safe_new_key: bool
    status: int = 0
    """A status that cannot be configured."""


def build_page_address(anchor: str, docs: str = DOCS_URL) -> str:
    """The address of a problem's page: its `type`, and where its `Link` leads."""
    return f"{docs.rstrip('/')}/{anchor}/"


def build_problem_document(problem: Problem, status: int, docs: str = DOCS_URL) -> dict[str, Any]:
    """The body of the answer."""
    return {
        "type": build_page_address(problem.anchor, docs) if TYPE_FORM == "address" else URN_PREFIX + problem.anchor,
        "title": problem.title,
        "status": status,
        "detail": problem.detail,
        "retry_same_key": problem.retry_same_key,
        "safe_new_key": problem.safe_new_key,
    }


def build_problem_headers(problem: Problem, docs: str = DOCS_URL) -> list[tuple[str, str]]:
    return [
        ("content-type", "application/problem+json"),
        ("link", f'<{build_page_address(problem.anchor, docs)}>; rel="describedby"'),
        ("cache-control", "no-store"),
    ]
