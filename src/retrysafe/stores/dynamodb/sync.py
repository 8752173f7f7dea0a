"""The sync colour of DynamoDB, through boto3's client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.base import follow
from retrysafe.stores.dynamodb.dispatch import combine_results, partition_singles, plan_operation
from retrysafe.stores.dynamodb.errors import begin_trail, record_sendings, translate_error
from retrysafe.stores.dynamodb.plans import TableRef
from retrysafe.stores.dynamodb.requests import DynamoPause, DynamoRequest, Sendable
from retrysafe.stores.dynamodb.sdk import make_client
from retrysafe.stores.dynamodb.table import migrate
from retrysafe.stores.dynamodb.urls import CAPABILITIES, DynamoLocation

R = TypeVar("R")
T = TypeVar("T")

MAX_PARALLEL_REQUESTS = 16
"""Requests of one call that are under way at once."""


class DynamoStore:
    """Made from a URL, or around your own boto3 client, which stays yours to close:
    `DynamoStore(Location(url="dynamodb://eu-west-1/keys", region="eu-west-1", table="keys"), client)`."""

    capabilities = CAPABILITIES

    def __init__(self, at: DynamoLocation, client: Any = None) -> None:
        self._at = at
        self._place = TableRef(at.table, at.skew)
        self._owns_client = client is None
        self._client = client if client is not None else make_client(at)
        record_sendings(self._client)
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def execute(self, op: Op[R]) -> R:
        reply: R = follow(plan_operation(op, self._place), self._send)
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """DynamoDB has no batch of conditional writes, so each goes by itself, many at a time."""
        alone, beside = partition_singles(ops)
        found = dict(zip(beside, self._map(lambda place: self._execute_or_error(ops[place]), beside), strict=True))
        found |= {place: self._execute_or_error(ops[place]) for place in alone}
        return combine_results([found[place] for place in range(len(ops))])

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
        trail = begin_trail()
        try:
            return getattr(self._client, request.call)(**request.arguments)
        except Exception as error:
            found = translate_error(error, trail, self._at.url)
            if not isinstance(found, Exception):
                return found
            if found is error:
                raise
            raise found from error

    def _map(self, work: Callable[[T], R], on: Iterable[T]) -> list[R]:
        todo = list(on)
        if len(todo) < 2:
            return [work(each) for each in todo]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(MAX_PARALLEL_REQUESTS, thread_name_prefix="retrysafe-dynamodb")
            pool = self._pool
        return list(pool.map(work, todo))
