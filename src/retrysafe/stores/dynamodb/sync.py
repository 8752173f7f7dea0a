"""The sync DynamoDB store, on boto3's client. It sends requests in parallel on threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import follow
from retrysafe.stores.dynamodb.dispatch import combine_results, partition_singles, plan_operation
from retrysafe.stores.dynamodb.errors import translate_error
from retrysafe.stores.dynamodb.plans import TableRef
from retrysafe.stores.dynamodb.requests import DynamoPause, DynamoRequest, Sendable
from retrysafe.stores.dynamodb.sdk import collect_attempt_errors, make_client, register_attempt_hook
from retrysafe.stores.dynamodb.table import migrate
from retrysafe.stores.dynamodb.urls import CAPABILITIES, DynamoLocation

R = TypeVar("R")
T = TypeVar("T")

MAX_PARALLEL_REQUESTS = 16
"""How many requests of one call may be in flight at once."""


class DynamoStore:
    """Made from a parsed URL, and optionally with your own boto3 client, which the store does not close:
    `DynamoStore(DynamoLocation(url="dynamodb://eu-west-1/keys", region="eu-west-1", table="keys"), client)`."""

    capabilities = CAPABILITIES

    def __init__(self, at: DynamoLocation, client: Any = None) -> None:
        self._at = at
        self._ref = TableRef(at.table, at.skew)
        self._owns_client = client is None
        self._client = client if client is not None else make_client(at)
        register_attempt_hook(self._client)
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def execute(self, op: Op[R]) -> R:
        reply: R = follow(plan_operation(op, self._ref), self._send)
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Execute each operation by itself, many in parallel: DynamoDB has no batch of conditional writes."""
        sequential, parallel = partition_singles(ops)
        replies = self._map(lambda index: self._execute_or_error(ops[index]), parallel)
        results = dict(zip(parallel, replies, strict=True))
        results |= {index: self._execute_or_error(ops[index]) for index in sequential}
        return combine_results([results[index] for index in range(len(ops))])

    def _execute_or_error(self, op: Op[Any]) -> Any:
        try:
            return self.execute(op)
        except Exception as error:
            return error

    def migrate(self) -> list[str]:
        return follow(migrate(self._at), self._send)

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        if self._owns_client:
            self._client.close()

    def _send(self, request: Sendable) -> Any:
        if isinstance(request, list):
            return self._map(self._call, request)
        if isinstance(request, DynamoPause):
            return time.sleep(request.seconds)
        return self._call(request)

    def _call(self, request: DynamoRequest) -> Any:
        attempt_errors = collect_attempt_errors()
        try:
            return getattr(self._client, request.call)(**request.arguments)
        except Exception as error:
            found = translate_error(error, attempt_errors, self._at.url)
            if not isinstance(found, Exception):
                return found
            if found is error:
                raise
            raise found from error

    def _map(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        todo = list(items)
        if len(todo) < 2:
            return [work(each) for each in todo]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(MAX_PARALLEL_REQUESTS, thread_name_prefix="retrysafe-dynamodb")
            pool = self._pool
        return list(pool.map(work, todo))
