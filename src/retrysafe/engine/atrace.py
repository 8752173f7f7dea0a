"""The traced performer for event loops (trace.py has everything else). A file of its own because it imports asyncio,
which sync programs need not load."""

from __future__ import annotations

from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.engine.aheartbeat import AsyncHeartbeat
from retrysafe.engine.aperform import AsyncPerformer
from retrysafe.engine.effects import Invoke
from retrysafe.engine.figures import Figures
from retrysafe.engine.sealing import Sealer
from retrysafe.engine.trace import SPAN_NAMES, Trace, describe_invoke, describe_op
from retrysafe.stores.base import AsyncStore

R = TypeVar("R")


class AsyncTracedPerformer(AsyncPerformer):
    """A performer whose claims, settlements and calls are spans."""

    def __init__(
        self, store: AsyncStore, heartbeat: AsyncHeartbeat, sealer: Sealer, trace: Trace, figures: Figures | None = None
    ) -> None:
        super().__init__(store, heartbeat, sealer, figures)
        self._trace = trace

    async def execute_through_cancel(self, op: Op[R], until: float | None = None) -> R:
        name = SPAN_NAMES.get(type(op))
        if name is None:
            return await super().execute_through_cancel(op, until)
        with self._trace.span(name, describe_op(op)) as span:
            reply = await super().execute_through_cancel(op, until)
            span.reply = reply
        return reply

    async def execute(self, op: Op[R], until: float | None = None) -> R:
        name = SPAN_NAMES.get(type(op))
        if name is None:
            return await super().execute(op, until)
        with self._trace.span(name, describe_op(op)) as span:
            reply = await super().execute(op, until)
            span.reply = reply
        return reply

    async def _invoke(self, call: Invoke) -> Any:
        with self._trace.span("invoke", describe_invoke(call)):
            return await super()._invoke(call)
