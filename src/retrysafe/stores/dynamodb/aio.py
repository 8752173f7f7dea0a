"""The async DynamoDB store, on aiobotocore. sync.py does the same with threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

from aiobotocore.config import AioConfig  # type: ignore[import-untyped]  # it ships no types
from aiobotocore.session import get_session  # type: ignore[import-untyped]

from retrysafe.core.ops import Op
from retrysafe.stores.base import afollow
from retrysafe.stores.dynamodb.dispatch import combine_results, plan_operation
from retrysafe.stores.dynamodb.errors import translate_error
from retrysafe.stores.dynamodb.plans import TableRef
from retrysafe.stores.dynamodb.requests import DynamoPause, DynamoRequest, Sendable
from retrysafe.stores.dynamodb.sdk import (
    build_config,
    collect_attempt_errors,
    register_attempt_hook,
    share_service_data,
)
from retrysafe.stores.dynamodb.signing import use_lean_signer
from retrysafe.stores.dynamodb.table import migrate
from retrysafe.stores.dynamodb.urls import CAPABILITIES, DynamoLocation

R = TypeVar("R")
T = TypeVar("T")

MAX_PARALLEL_REQUESTS = 32
"""How many requests of one call may be in flight at once."""


class AsyncDynamoStore:
    """Made from a parsed URL, and optionally with your own aiobotocore client, which the store does not close."""

    capabilities = replace(CAPABILITIES, native_batching=True)
    """Batching gains nothing: DynamoDB has no batch of conditional writes, and an event loop sends many at once
    anyway."""

    def __init__(self, at: DynamoLocation, client: Any = None) -> None:
        self._at = at
        self._ref = TableRef(at.table, at.skew)
        self._client = client
        if client is not None:
            register_attempt_hook(client)
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()

    async def execute(self, op: Op[R]) -> R:
        reply: R = await afollow(plan_operation(op, self._ref), self._send)
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
        attempt_errors = collect_attempt_errors()
        try:
            return await getattr(client, request.call)(**request.arguments)
        except Exception as error:
            found = translate_error(error, attempt_errors, self._at.url)
            if not isinstance(found, Exception):
                return found
            if found is error:
                raise
            raise found from error

    async def _open(self) -> Any:
        async with self._opening:
            if self._client is None:
                context = share_service_data(get_session()).create_client(
                    "dynamodb", config=AioConfig(**build_config(self._at)), **self._at.client_options()
                )
                client = await self._stack.enter_async_context(context)
                register_attempt_hook(client)
                use_lean_signer(client)
                self._client = client
            return self._client

    async def _map(self, work: Callable[[T], Awaitable[R]], todo: Sequence[T]) -> list[R]:
        slots = asyncio.Semaphore(MAX_PARALLEL_REQUESTS)

        async def run_one(each: T) -> R:
            async with slots:
                return await work(each)

        return list(await asyncio.gather(*(run_one(each) for each in todo)))
