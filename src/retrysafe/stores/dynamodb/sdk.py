"""Clients of the AWS SDK, and a log of the errors that the SDK's own retries hide.

The SDK sends a request several times and shows only the last result. A refusal after an attempt without an answer does
not prove that nothing was done: the earlier attempt may have been carried out. So a hook collects the error of each
attempt.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from typing import Any

import botocore
from botocore.config import Config
from botocore.loaders import create_loader
from botocore.session import get_session

from retrysafe.stores.dynamodb.signing import use_lean_signer
from retrysafe.stores.dynamodb.urls import DynamoLocation

AttemptErrors = list[BaseException]
"""The errors of one request's attempts, in order."""

_attempt_errors: ContextVar[AttemptErrors | None] = ContextVar("retrysafe_dynamodb_attempt_errors", default=None)


def make_client(at: DynamoLocation) -> Any:
    """Make a client as `boto3.client("dynamodb")` would, with a signer of our own."""
    session = share_service_data(get_session())
    client = session.create_client("dynamodb", config=Config(**build_config(at)), **at.client_options())
    use_lean_signer(client)
    return client


def build_config(at: DynamoLocation) -> dict[str, Any]:
    """The arguments of botocore's Config. The SDK composes its own `User-Agent` twice for each request, which took a
    tenth of the processor time."""
    return {**at.client_config(), "user_agent": f"retrysafe Botocore/{botocore.__version__}"}


def share_service_data(session: Any) -> Any:
    """Give a session the loader that all sessions share: the SDK's description of DynamoDB is a megabyte of files.

    Each store still has a session of its own, because a session is not safe to use from several threads.
    """
    session.register_component("data_loader", _load_service_data(session.get_config_variable("data_path")))
    return session


@cache
def _load_service_data(data_path: str | None) -> Any:
    return create_loader(data_path)


class ServerFailed(Exception):
    """An attempt was answered with a 5xx status: it may have been carried out."""


def register_attempt_hook(client: Any) -> None:
    """Collect the error of each attempt of this client's requests."""
    client.meta.events.register("needs-retry.dynamodb", _record_attempt)


def collect_attempt_errors() -> AttemptErrors:
    """Start a new list for one request. The hook fills it, in this thread or task."""
    errors: AttemptErrors = []
    _attempt_errors.set(errors)
    return errors


def _record_attempt(caught_exception: BaseException | None = None, response: Any = None, **_: Any) -> None:
    errors = _attempt_errors.get()
    if errors is None:
        return
    if caught_exception is not None:
        errors.append(caught_exception)
    elif response is not None and response[0].status_code >= 500:
        errors.append(ServerFailed())
