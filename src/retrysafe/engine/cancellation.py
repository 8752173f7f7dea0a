"""Finishing work although the caller is cancelled.

A write that was sent, or a transaction that is being committed, must not be left half way because the request around it
was cancelled. The callers differ in how long they wait, and in what they do with the cancellation afterwards. So this
module only waits, and reports the cancellations that arrived meanwhile.

The module imports asyncio; a module that sync programs load imports it inside a function.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple


class HeldCancellations(NamedTuple):
    """The cancellations that arrived while the caller waited. None of them was raised."""

    first: asyncio.CancelledError | None
    """The one to raise, if the caller lets its cancellation through after all."""
    number: int


async def finish_despite_cancellation(
    work: asyncio.Future[Any],
    *,
    seconds: float | None = None,
    seconds_after_cancel: float | None = None,
    max_cancels: int | None = None,
) -> HeldCancellations:
    """Wait until `work` is done, and hold back each cancellation of the caller meanwhile.

    The wait ends early, with `work` still running, `seconds` after the call, `seconds_after_cancel` after the first
    cancellation, or with the cancellation that exceeds `max_cancels`. (anyio cancels again at each turn of the loop:
    to wait on would only burn the processor.) None means no such limit. `work.done()` tells whether it ended.

    This function never cancels `work`, and never raises what `work` raised: read `work.result()` for that.
    """
    loop = asyncio.get_running_loop()
    deadline = None if seconds is None else loop.time() + seconds
    first: asyncio.CancelledError | None = None
    count = 0
    while not work.done() and (deadline is None or loop.time() < deadline):
        try:
            await asyncio.wait({work}, timeout=None if deadline is None else deadline - loop.time())
        except asyncio.CancelledError as cancellation:
            count += 1
            if max_cancels is not None and count > max_cancels:
                return HeldCancellations(first or cancellation, count)
            if first is None:
                first = cancellation
                if seconds_after_cancel is not None:
                    limit = loop.time() + seconds_after_cancel
                    deadline = limit if deadline is None else min(deadline, limit)
    return HeldCancellations(first, count)
