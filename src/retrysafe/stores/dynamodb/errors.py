"""Translates errors of DynamoDB and its SDK into ours: was the request refused, or is its outcome unknown?

A refusal is certain only if no earlier attempt of the same request stayed without an answer (sdk.py collects them).
"""

from __future__ import annotations

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

from retrysafe.core.texts import first_line
from retrysafe.core.urls import safe_url
from retrysafe.errors import RetrySafeError, SchemaMissing, StoreError, StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.stores.dynamodb.items import too_large_error
from retrysafe.stores.dynamodb.requests import ConditionFailed, TransactionConflict
from retrysafe.stores.dynamodb.sdk import AttemptErrors
from retrysafe.stores.dynamodb.transact import TransactionCancelled

CONNECT_ERRORS = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError, SSLError)
NOT_SENT_ERRORS = (
    *CONNECT_ERRORS,
    NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, NoRegionError,
)  # fmt: skip
"""Errors before anything was sent."""

THROTTLED_CODES = frozenset({
    "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "Throttling",
    "ThrottledException", "RequestThrottled", "LimitExceededException", "ThrottlingError",
})  # fmt: skip
DENIED_CODES = frozenset({
    "AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException",
    "MissingAuthenticationTokenException", "IncompleteSignatureException", "InvalidClientTokenId", "AccessDenied",
    "SignatureDoesNotMatch", "OptInRequired",
})  # fmt: skip
TRANSACTION_CONFLICT_CODES = frozenset({"TransactionConflictException", "TransactionInProgressException"})


def translate_error(
    error: Exception, attempt_errors: AttemptErrors, url: str
) -> Exception | ConditionFailed | TransactionCancelled:
    """Our exception for an SDK error; or the value that stands for a failed condition or a cancelled transaction."""
    if isinstance(error, RetrySafeError | TransactionConflict):
        return error
    lost = [each for each in attempt_errors if not isinstance(each, NOT_SENT_ERRORS)]
    if isinstance(error, ClientError):
        return _translate_reply(error, lost, url)
    if isinstance(error, NOT_SENT_ERRORS) and not lost:
        kind = StoreUnreachable if isinstance(error, CONNECT_ERRORS) else StoreUnavailable
        return kind(f"DynamoDB could not be reached ({_first_line(error)}): nothing was done; check {url}")
    if isinstance(error, BotoCoreError | OSError | TimeoutError):
        return StoreUnclear(
            f"DynamoDB did not answer after the request was sent ({_first_line(error)}): it may have been done; "
            "send it again to find out"
        )
    return error


def _translate_reply(
    error: ClientError, lost: AttemptErrors, url: str
) -> Exception | ConditionFailed | TransactionCancelled:
    """Translate an error that DynamoDB answered. An earlier attempt without an answer (`lost`) may have been carried
    out all the same. Only a failed condition is certain, because it returns the record."""
    code = error_code(error)
    response: Any = error.response  # the stubs do not have the fields of single operations
    if code == "ConditionalCheckFailedException":
        return ConditionFailed(response.get("Item"))
    if code == "TransactionCanceledException" and not lost:
        return TransactionCancelled(tuple(response.get("CancellationReasons", ())))
    if lost or _http_status(error) >= 500:
        return StoreUnclear(f"DynamoDB failed ({code}: {_first_line(error)}): it may have been done; send it again")
    if code in TRANSACTION_CONFLICT_CODES:
        return TransactionConflict(_first_line(error))
    if code == "ResourceNotFoundException":
        return SchemaMissing(f"DynamoDB says: {_first_line(error)}", url)
    if code in THROTTLED_CODES:
        fix = "let the table pay per request, or raise its capacity"
        return StoreUnavailable(f"DynamoDB throttles this caller ({code}); nothing was done: {fix}")
    if code in DENIED_CODES:
        fix = "give it the policy of docs/howto/dynamodb.md, and check its credentials"
        return StoreUnavailable(f"DynamoDB refused this caller ({code}: {_first_line(error)}); nothing was done: {fix}")
    if "size" in _first_line(error) and code == "ValidationException":
        return too_large_error(_first_line(error))
    return StoreError(f"DynamoDB refused ({code}): {_first_line(error)}")


def error_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _http_status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))


def _first_line(error: BaseException) -> str:
    message = error.response.get("Error", {}).get("Message", "") if isinstance(error, ClientError) else str(error)
    return first_line(error, safe_url(message))
