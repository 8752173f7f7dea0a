"""Shares: how many connections of a pool each kind of use may have at once.

An operation that waits for a row of another transaction keeps its connection meanwhile, for up to two seconds. Many
such operations must not use up the pool: leases are renewed through it, too, and a lease of a call that has nothing to
do with those rows must not be lost (I33).

A write of an owner that is sent alone waits for the longest time, and such writes have about two thirds of the pool. A
batch waits for a shorter time, or as long; batches and claims may have what is left of all but one connection. A
renewal may have every connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Literal

from retrysafe.core.ops import Claim, Op, Renew

Use = Literal["alone", "batch", "renewal"]

NoShareError = Callable[[Use, int, float], Exception]
"""Makes the error for a use whose share of a pool (its size) was in use for so many seconds."""


def use_of(ops: Sequence[Op[Any]]) -> Use:
    """What a connection for these operations is used for."""
    if len(ops) == 1:
        return _USES_OF_SINGLE.get(type(ops[0]), "alone")
    return "renewal" if all(type(op) is Renew for op in ops) else "batch"


_USES_OF_SINGLE: dict[type[Any], Use] = {Renew: "renewal", Claim: "batch"}


def compute_shares(size: int) -> tuple[int, int]:
    """How many connections operations that are sent alone may have, and how many these and batches may have together.
    A pool with one connection has nothing to share, and one with two has nothing for batches alone."""
    return max(1, size - max(2, size // 3)), max(1, size - 1)


class Shares:
    """The shares of a sync store. Many threads use it at once. A pool without a limit (size 0) has no shares."""

    def __init__(self, size: int, timeout: float, no_share_error: NoShareError) -> None:
        self._size, self._timeout, self._no_share_error = size, timeout, no_share_error
        alone, together = compute_shares(size)
        self._alone, self._together = _build_tokens(alone), _build_tokens(together)

    def enter(self, use: Use) -> None:
        """Wait until this use may have one more connection."""
        if use == "renewal" or not self._size:
            return
        if use == "alone":
            self._acquire(self._alone, use)
            try:
                self._acquire(self._together, use)
            except BaseException:
                self._alone.put(None)
                raise
        else:
            self._acquire(self._together, use)

    def _acquire(self, share: Tokens, use: Use) -> None:
        try:
            share.get(timeout=self._timeout)
        except Empty:
            raise self._no_share_error(use, self._size, self._timeout) from None

    def leave(self, use: Use) -> None:
        if use == "renewal" or not self._size:
            return
        self._together.put(None)
        if use == "alone":
            self._alone.put(None)


Tokens = SimpleQueue[None]
"""One for each connection that a use may have. Not a semaphore of `threading`: an exception that a signal raises inside
one can leave its lock held for ever."""


def _build_tokens(number: int) -> Tokens:
    tokens: Tokens = SimpleQueue()
    for _ in range(number):
        tokens.put(None)
    return tokens


class AsyncShares:
    """The shares of an async store, on one event loop."""

    def __init__(self, size: int, timeout: float, no_share_error: NoShareError) -> None:
        self._size, self._timeout, self._no_share_error = size, timeout, no_share_error
        alone, together = compute_shares(size)
        self._alone, self._together = asyncio.Semaphore(alone), asyncio.Semaphore(together)

    async def enter(self, use: Use) -> None:
        """Wait until this use may have one more connection."""
        if use == "renewal" or not self._size:
            return
        if use == "alone":
            await self._acquire(self._alone, use)
            try:
                await self._acquire(self._together, use)
            except BaseException:
                self._alone.release()
                raise
        else:
            await self._acquire(self._together, use)

    async def _acquire(self, share: asyncio.Semaphore, use: Use) -> None:
        if not share.locked():
            await share.acquire()  # does not wait, and needs no timer
            return
        try:
            async with asyncio.timeout(self._timeout):
                await share.acquire()
        except TimeoutError as error:
            raise self._no_share_error(use, self._size, self._timeout) from error

    def leave(self, use: Use) -> None:
        if use == "renewal" or not self._size:
            return
        self._together.release()
        if use == "alone":
            self._alone.release()
