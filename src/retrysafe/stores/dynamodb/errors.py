"""What DynamoDB and its SDK raise, read: did it say no, or did it go silent?

The SDK sends a request several times and shows only what came last. So what happened at each sending is written down
(`Trail`): a refusal after a sending without an answer is not the whole truth.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
)

from retrysafe.core.urls import safe_url
from retrysafe.errors import RetrySafeError, SchemaMissing, StoreError, StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.stores.dynamodb.items import too_large_error
from retrysafe.stores.dynamodb.requests import ConditionFailed, LockNotAvailable
from retrysafe.stores.dynamodb.transact import Cancelled

CONNECT_ERRORS = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError, SSLError)
NOT_SENT_ERRORS = (
    *CONNECT_ERRORS,
    NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, NoRegionError,
)  # fmt: skip
"""Nothing left this machine."""

THROTTLED_CODES = frozenset({
    "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "Throttling",
    "ThrottledException", "RequestThrottled", "LimitExceededException", "ThrottlingError",
})  # fmt: skip
DENIED_CODES = frozenset({
    "AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException",
    "MissingAuthenticationTokenException", "IncompleteSignatureException", "InvalidClientTokenId", "AccessDenied",
    "SignatureDoesNotMatch", "OptInRequired",
})  # fmt: skip
LOCK_CONFLICT_CODES = frozenset({"TransactionConflictException", "TransactionInProgressException"})

Trail = list[BaseException]
_trail: ContextVar[Trail | None] = ContextVar("retrysafe_dynamodb_trail", default=None)


def record_sendings(client: Any) -> None:
    """Write down what each sending of this client's requests met."""
    client.meta.events.register("needs-retry.dynamodb", _record_sending)


def _record_sending(caught_exception: BaseException | None = None, response: Any = None, **_: Any) -> None:
    trail = _trail.get()
    if trail is None:
        return
    if caught_exception is not None:
        trail.append(caught_exception)
    elif response is not None and response[0].status_code >= 500:
        trail.append(ServerFailed())


class ServerFailed(Exception):
    """It answered that it failed: it may have happened."""


def begin_trail() -> Trail:
    """For one request: its own list, in this thread or task."""
    trail: Trail = []
    _trail.set(trail)
    return trail


def translate_error(error: Exception, trail: Trail, url: str) -> Exception | ConditionFailed | Cancelled:
    """The error as one of ours, or the refusal it stands for."""
    if isinstance(error, RetrySafeError | LockNotAvailable):
        return error
    lost = [each for each in trail if not isinstance(each, NOT_SENT_ERRORS)]
    if isinstance(error, ClientError):
        return _translate_reply(error, lost, url)
    if isinstance(error, NOT_SENT_ERRORS) and not lost:
        kind = StoreUnreachable if isinstance(error, CONNECT_ERRORS) else StoreUnavailable
        return kind(f"DynamoDB could not be reached ({_first_line(error)}): nothing was done; is {url} right?")
    if isinstance(error, BotoCoreError | OSError | TimeoutError):
        return StoreUnclear(
            f"DynamoDB went silent after the request was sent ({_first_line(error)}): it may have been done"
        )
    return error


def _translate_reply(error: ClientError, lost: Trail, url: str) -> Exception | ConditionFailed | Cancelled:
    """It answered. Whatever it says, an earlier sending that nobody answered may have been carried out; only what
    brings the record back tells the whole truth."""
    code = error_code(error)
    response: Any = error.response  # what an operation adds to it is not in the general stubs
    if code == "ConditionalCheckFailedException":
        return ConditionFailed(response.get("Item"))
    if code == "TransactionCanceledException" and not lost:
        return Cancelled(tuple(response.get("CancellationReasons", ())))
    if lost or _http_status(error) >= 500:
        return StoreUnclear(f"DynamoDB failed ({code}: {_first_line(error)}): it may have been done; send it again")
    if code in LOCK_CONFLICT_CODES:
        return LockNotAvailable(_first_line(error))
    if code == "ResourceNotFoundException":
        return SchemaMissing(f"DynamoDB says: {_first_line(error)}", url)
    if code in THROTTLED_CODES:
        fix = "let the table pay per request, or raise its capacity"
        return StoreUnavailable(f"DynamoDB takes no more for now ({code}); nothing was done: {fix}")
    if code in DENIED_CODES:
        fix = "give it the policy of docs/howto/dynamodb.md, and look at its credentials"
        return StoreUnavailable(f"DynamoDB refused this caller ({code}: {_first_line(error)}); nothing was done: {fix}")
    if "size" in _first_line(error) and code == "ValidationException":
        return too_large_error(_first_line(error))
    return StoreError(f"DynamoDB refused ({code}): {_first_line(error)}")


def error_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _http_status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))


def _first_line(error: BaseException) -> str:
    told = error.response.get("Error", {}).get("Message", "") if isinstance(error, ClientError) else str(error)
    lines = safe_url(told).strip().splitlines()
    return lines[0] if lines else type(error).__name__
