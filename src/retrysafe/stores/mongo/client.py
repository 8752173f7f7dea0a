"""Pymongo clients, and how the async and the sync store run operations at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from bson.codec_options import CodecOptions
from pymongo import errors

from retrysafe.core.urls import redact_secrets
from retrysafe.errors import StoreURLError
from retrysafe.stores.mongo.settings import DEFAULT_CLIENT_OPTIONS, FIXED_CLIENT_OPTIONS

A = TypeVar("A")
R = TypeVar("R")

CODEC: CodecOptions[Mapping[str, Any]] = CodecOptions(document_class=dict, tz_aware=True)
"""How documents are decoded. It does not depend on the options of a client that the user passes."""

MAX_PARALLEL_OPS = 16
"""How many operations of one batch run at the same time."""


def make_client(kind: Any, url: str) -> Any:
    """Create a client for this URL. It connects at first use; an invalid URL raises StoreURLError here."""
    given = {name.lower() for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)}
    defaults = {name: value for name, value in DEFAULT_CLIENT_OPTIONS.items() if name.lower() not in given}
    try:
        return kind(url, **{**defaults, **FIXED_CLIENT_OPTIONS})
    except (errors.ConfigurationError, ValueError, TypeError) as error:  # InvalidURI is a ConfigurationError
        raise StoreURLError(f"the URL is not what MongoDB's driver takes: {redact_secrets(str(error), url)}") from error


class AsyncParallelRunner:
    """Runs operations at the same time, at most MAX_PARALLEL_OPS of them."""

    def __init__(self) -> None:
        self._limit = asyncio.Semaphore(MAX_PARALLEL_OPS)

    async def run(self, execute: Callable[[A], Awaitable[R]], ops: Sequence[A]) -> list[R]:
        """Wait for all of them, then return the replies in order, or raise the first error."""
        if len(ops) < 2:
            return [await execute(op) for op in ops]

        async def run_limited(op: A) -> R:
            async with self._limit:
                return await execute(op)

        replies = await asyncio.gather(*(run_limited(op) for op in ops), return_exceptions=True)
        done: list[R] = []
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
            done.append(reply)
        return done

    async def aclose(self) -> None:
        """Nothing to close: no task outlives `run`."""


class ParallelRunner:
    """Like AsyncParallelRunner, with threads. The threads start with the first batch that needs them."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def run(self, execute: Callable[[A], R], ops: Sequence[A]) -> list[R]:
        if len(ops) < 2:
            return [execute(op) for op in ops]
        threads = self._get_threads()
        running = [threads.submit(execute, op) for op in ops]
        failures = [error for error in (each.exception() for each in running) if error is not None]
        if failures:
            raise failures[0]
        return [each.result() for each in running]

    def close(self) -> None:
        """Wait for running operations, then end the threads."""
        if self._threads is not None:
            self._threads.shutdown()

    def _get_threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(MAX_PARALLEL_OPS, "retrysafe-mongodb")
            return self._threads
