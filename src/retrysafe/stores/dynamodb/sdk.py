"""Clients of Amazon's SDK. What it knows of DynamoDB is read from files of a megabyte: once per process is enough."""

from __future__ import annotations

from functools import cache
from typing import Any

from botocore.config import Config
from botocore.loaders import create_loader
from botocore.session import get_session

from retrysafe.stores.dynamodb.urls import DynamoLocation


@cache
def _load_service_data(data_path: str | None) -> Any:
    return create_loader(data_path)


def share_service_data(session: Any) -> Any:
    """A session that reads nothing anew. It stays one for each store: a session is not made for several threads."""
    session.register_component("data_loader", _load_service_data(session.get_config_variable("data_path")))
    return session


def make_client(at: DynamoLocation) -> Any:
    """What `boto3.client("dynamodb")` gives."""
    session = share_service_data(get_session())
    return session.create_client("dynamodb", config=Config(**at.client_config()), **at.client_options())
