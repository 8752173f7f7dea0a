"""OpenTelemetry: metrics, spans, and a link from a replay to the run that made its answer.

    from retrysafe import RetrySafe, otel

    safe = RetrySafe("postgresql://…")
    otel.instrument(safe)                 # before the first call

Counters and gauges are observable instruments: OpenTelemetry reads `safe.figures` when it collects, and a request pays
nothing for them. The SDK has no observable histogram, so durations of executions are recorded when they end. Durations
of store calls are recorded on request (`store_calls=True`): there are several in each request.

Spans of our own are only around executions and foreign steps. A claim sets attributes on the span that is there, such
as the one of the HTTP server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from retrysafe.engine.figures import Buckets, Figures, Labels
from retrysafe.engine.instruments import INSTRUMENTS, STORE_OPERATIONS, Instrument, locate
from retrysafe.errors import MissingDriver

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, Histogram, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider
except ModuleNotFoundError as error:
    raise MissingDriver("otel", error.name or "opentelemetry", "otel", "retrysafe.otel") from error

from retrysafe.otel.spans import SpanRecorder

__all__ = ["instrument"]

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

SCOPE = "retrysafe"


def instrument(
    safe: RetrySafe,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
    *,
    store_calls: bool = False,
) -> None:
    """Export the figures of `safe` and trace what it runs. The global providers are used unless others are given. Call
    it once, before the first call of `safe`; it raises UsageError afterwards."""
    from retrysafe import __version__

    spans = SpanRecorder(trace.get_tracer(SCOPE, __version__, tracer_provider))
    safe.add_trace(spans.on_event, spans.current_traceparent)
    safe.figures.add_tap(spans.on_figure)
    register_metrics(safe, metrics.get_meter(SCOPE, __version__, meter_provider), store_calls=store_calls)


def register_metrics(safe: RetrySafe, meter: metrics.Meter, *, store_calls: bool) -> None:
    figures, recorded = safe.figures, {}
    for each in INSTRUMENTS:
        if each.type == "histogram":
            if store_calls or each is not STORE_OPERATIONS:
                recorded[each.name] = meter.create_histogram(
                    each.name, each.unit, each.help, explicit_bucket_boundaries_advisory=list(each.bounds)
                )
        else:
            create = {
                "counter": meter.create_observable_counter,
                "updown": meter.create_observable_up_down_counter,
                "gauge": meter.create_observable_gauge,
            }[each.type]
            create(each.name, [build_callback(figures, each)], each.unit, each.help)
    figures.add_tap(HistogramTap(figures, recorded))


def build_callback(figures: Figures, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """What OpenTelemetry calls when it collects."""

    def observe(options: CallbackOptions) -> Iterable[Observation]:
        for metric in figures.snapshot():
            if metric.instrument is instrument:
                for labels, value in metric.series.items():
                    assert not isinstance(value, Buckets), "histograms are recorded, not observed"
                    yield Observation(value, build_attributes(instrument, labels))

    return observe


def build_attributes(instrument: Instrument, labels: Labels) -> dict[str, str]:
    """The attributes of a series. `error.type` is left out where nothing failed, as OpenTelemetry's conventions say."""
    return {name: value for name, value in zip(instrument.labels, labels, strict=True) if value or name != "error.type"}


class HistogramTap:
    """Records durations and sizes as they are measured."""

    def __init__(self, figures: Figures, recorded: dict[str, Histogram]) -> None:
        self._figures = figures
        self._recorded = recorded

    def __call__(self, what: str, labels: Labels, by: float) -> None:
        place = locate(what, labels, self._figures.store)
        if place is not None and place[0].name in self._recorded:
            found, at = place
            self._recorded[found.name].record(by, build_attributes(found, at))
