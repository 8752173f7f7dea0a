"""The async colour of DynamoDB, through aiobotocore. The twin of sync.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from aiobotocore.config import AioConfig  # type: ignore[import-untyped]  # it ships no types
from aiobotocore.session import get_session  # type: ignore[import-untyped]

from retrysafe.core.ops import Op
from retrysafe.stores.base import afollow
from retrysafe.stores.dynamodb.dispatch import combine_results, plan_operation
from retrysafe.stores.dynamodb.errors import begin_trail, record_sendings, translate_error
from retrysafe.stores.dynamodb.plans import TableRef
from retrysafe.stores.dynamodb.requests import DynamoPause, DynamoRequest, Sendable
from retrysafe.stores.dynamodb.sdk import share_service_data
from retrysafe.stores.dynamodb.table import migrate
from retrysafe.stores.dynamodb.urls import CAPABILITIES, DynamoLocation

R = TypeVar("R")
T = TypeVar("T")

MAX_PARALLEL_REQUESTS = 32
"""Requests of one call that are under way at once."""


class AsyncDynamoStore:
    """Made from a URL, or around your own aiobotocore client, which stays yours to close."""

    capabilities = CAPABILITIES
    native_batching = True
    """There is nothing to gain: DynamoDB has no batch of conditional writes, and a loop sends many at once anyway."""

    def __init__(self, at: DynamoLocation, client: Any = None) -> None:
        self._at = at
        self._place = TableRef(at.table, at.skew)
        self._client = client
        if client is not None:
            record_sendings(client)
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()

    async def execute(self, op: Op[R]) -> R:
        reply: R = await afollow(plan_operation(op, self._place), self._send)
        return reply

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return combine_results(await self._map(self._execute_or_error, ops))

    async def _execute_or_error(self, op: Op[Any]) -> Any:
        try:
            return await self.execute(op)
        except Exception as error:
            return error

    async def migrate(self) -> list[str]:
        return await afollow(migrate(self._at), self._send)

    async def aclose(self) -> None:
        self._client = None
        await self._stack.aclose()

    async def _send(self, request: Sendable) -> Any:
        if isinstance(request, list):
            return await self._map(self._call, request)
        if isinstance(request, DynamoPause):
            return await asyncio.sleep(request.seconds)
        return await self._call(request)

    async def _call(self, request: DynamoRequest) -> Any:
        client = self._client or await self._open()
        trail = begin_trail()
        try:
            return await getattr(client, request.call)(**request.arguments)
        except Exception as error:
            found = translate_error(error, trail, self._at.url)
            if not isinstance(found, Exception):
                return found
            if found is error:
                raise
            raise found from error

    async def _open(self) -> Any:
        async with self._opening:
            if self._client is None:
                made = share_service_data(get_session()).create_client(
                    "dynamodb", config=AioConfig(**self._at.client_config()), **self._at.client_options()
                )
                client = await self._stack.enter_async_context(made)
                record_sendings(client)
                self._client = client
            return self._client

    async def _map(self, work: Callable[[T], Awaitable[R]], todo: Sequence[T]) -> list[R]:
        gate = asyncio.Semaphore(MAX_PARALLEL_REQUESTS)

        async def run_one(each: T) -> R:
            async with gate:
                return await work(each)

        return list(await asyncio.gather(*(run_one(each) for each in todo)))
