"""The answers that an operation gets from us, because an operator or its failures ended it. They are stored, so every
retry gets them, and they say whether a new key is safe: a client that tries again with a new key must not pay twice.
"""

from __future__ import annotations

import json

from retrysafe.core.records import Answer
from retrysafe.engine.problem_documents import Problem, build_problem_document, build_problem_headers

UNDONE = Problem(
    "", "operation-undone", "It was undone",
    "An operator has undone this request. Send it with a new key to repeat it.",
    False, True, 409,
)  # fmt: skip
PARTLY_UNDONE = Problem(
    "", "operation-undone-in-part", "It was ended, and not all of it could be undone",
    "This request was ended before it was finished, and part of what it did cannot be undone. Ask before you send it "
    "with a new key: that part would be done twice.",
    False, False, 409,
)  # fmt: skip
CANCELLED = Problem(
    "", "operation-cancelled", "It was cancelled",
    "An operator has ended this request where it was, and nothing was undone. Ask before you send it with a new key: "
    "what it had done until then would be done twice.",
    False, False, 409,
)  # fmt: skip
GIVEN_UP = Problem(
    "", "operation-given-up", "It could not be finished, and was undone",
    "A part of this request failed for good, so the parts that were done have been undone. Send it with a new key to "
    "repeat it.",
    False, True, 502,
)  # fmt: skip


def build_ending(problem: Problem, status: int = 0) -> Answer:
    """What is stored. `status`: another one than the problem's own."""
    code = status or problem.status
    return Answer(code, json.dumps(build_problem_document(problem, code)).encode(), build_problem_headers(problem))
