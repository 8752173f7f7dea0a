"""The answers to the sender. A sender reads little but the status: 2xx ends its retries, and after anything else it
retries.

Never 410 and never a redirect: some senders remove an endpoint that answers 410, and none follows a redirect.
"""

from __future__ import annotations

import logging
import math

from retrysafe.core.records import Answer
from retrysafe.engine.guard import Ended
from retrysafe.engine.problem_documents import Problem
from retrysafe.errors import AnswerGone, NotNow, RetrySafeError, VerificationError
from retrysafe.web import problems
from retrysafe.web.capture import BODILESS, NO_STORE, Response
from retrysafe.web.problems import Codes, build_problem_response, describe_error
from retrysafe.webhooks.event import AnswerNotFinal

_log = logging.getLogger("retrysafe.webhooks")

_CODES = Codes()

UNVERIFIED = Problem(
    "malformed", "verification", "The webhook could not be verified",
    "Its signature, its time or its form is not that of a delivery we may believe. Nothing was done.",
    False, False,
)  # fmt: skip
WRONG_METHOD = Problem(
    "malformed", "verification", "Webhooks are sent with POST",
    "This address takes deliveries, which are POST requests. Nothing was done.",
    False, False, 405,
)  # fmt: skip


def accepted_response() -> Response:
    """An empty 200."""
    return Response.build(200, (NO_STORE,), b"")


def challenge_response(challenge: bytes) -> Response:
    return Response.build(200, (("content-type", "text/plain; charset=utf-8"), NO_STORE), challenge)


def wrong_method_response() -> Response:
    return build_problem_response(WRONG_METHOD, _CODES).with_headers(("allow", "POST"))


def refused_body_response(problem: Problem) -> Response:
    """For a body that could not be read: too large, too slow, or cut off."""
    return build_problem_response(problem, _CODES)


def ended_response(done: Ended) -> Response:
    response = answer_response(done.answer)
    return response.as_replay() if done.replayed else response


def answer_response(answer: Answer) -> Response:
    headers = (*(pair for pair in answer.headers if pair[0].lower() not in _OWN_HEADERS), NO_STORE)
    if answer.status in BODILESS:
        return Response(answer.status, headers, b"")
    return Response.build(answer.status, headers, answer.body)


_OWN_HEADERS = frozenset({"cache-control", "content-length", "transfer-encoding"})


def error_response(error: Exception, provider: str) -> Response:
    """The answer for an error. The reason goes to the log, never to the sender."""
    if isinstance(error, VerificationError):
        _log.warning("a delivery to %s was refused: %s", provider, error.why)
        return build_problem_response(UNVERIFIED, _CODES)
    if isinstance(error, AnswerNotFinal):
        return answer_response(error.answer)
    if isinstance(error, AnswerGone):
        return accepted_response().as_replay()  # it was done, which is all the sender wants to know
    if isinstance(error, NotNow):
        wait = math.ceil(getattr(error, "retry_after", 1.0))
        return build_problem_response(problems.problem_for_error(error), _CODES, retry_after=wait)
    if isinstance(error, RetrySafeError):
        _log.error("a delivery from %s failed; its retry will run: %s", provider, describe_error(error))
        return build_problem_response(problems.problem_for_error(error), _CODES)
    _log.error("a delivery from %s failed; its retry will run", provider, exc_info=error)
    return build_problem_response(problems.FAILED_FOR_NOW, _CODES)
