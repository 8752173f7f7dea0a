"""The DynamoDB store: one conditional write for each operation. Sync code uses boto3, async code uses aiobotocore.

DynamoDB gives no access to a clock. Leases are judged by the caller's clock, minus the allowed clock skew (`?skew=`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.stores.base import AsyncStore, Store, driver_import
from retrysafe.stores.dynamodb.urls import CAPABILITIES, parse_url

if TYPE_CHECKING:
    from retrysafe.stores.diagnosis import Diagnosis


class DynamoBackend:
    """Opens `dynamodb://region/table`. The SDK is imported when a store is opened."""

    capabilities = CAPABILITIES

    def open(self, url: str) -> Store:
        at = parse_url(url)
        with driver_import("DynamoDB", "boto3", "dynamodb"):
            from retrysafe.stores.dynamodb.sync import DynamoStore
        return DynamoStore(at)

    def open_async(self, url: str) -> AsyncStore:
        at = parse_url(url)
        with driver_import("DynamoDB", "aiobotocore", "dynamodb"):
            from retrysafe.stores.dynamodb.aio import AsyncDynamoStore
        return AsyncDynamoStore(at)

    def schema(self, url: str) -> str:
        from retrysafe.stores.dynamodb.table import build_script

        return build_script(parse_url(url))

    def diagnose(self, url: str) -> Diagnosis:
        with driver_import("DynamoDB", "boto3", "dynamodb"):
            from retrysafe.stores.dynamodb import doctor
        return doctor.diagnose(parse_url(url))


backend = DynamoBackend()

__all__ = ["backend"]
