"""The instrumentor that `opentelemetry-instrument` finds by its entry point. It instruments each RetrySafe object that
is made from then on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]  # untyped

from retrysafe.engine.safe import RetrySafe
from retrysafe.otel import instrument


class RetrySafeInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # it has no types
    """`RetrySafeInstrumentor().instrument()`; takes the arguments of `retrysafe.otel.instrument`."""

    _hook: Callable[[RetrySafe], None] | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        known = ("meter_provider", "tracer_provider", "store_calls")
        self._hook = partial(instrument, **{name: kwargs[name] for name in known if name in kwargs})
        RetrySafe.on_made.append(self._hook)

    def _uninstrument(self, **kwargs: Any) -> None:
        """Objects that were made before keep their instruments."""
        if self._hook in RetrySafe.on_made:
            RetrySafe.on_made.remove(self._hook)
        self._hook = None
