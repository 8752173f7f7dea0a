"""Figures as the text that Prometheus reads (its exposition format 0.0.4), with the standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from retrysafe.engine.figures import Buckets, Labels, Metric
from retrysafe.engine.instruments import Instrument

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

TYPES = {"counter": "counter", "updown": "gauge", "gauge": "gauge", "histogram": "histogram"}

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def format_metrics(metrics: Iterable[Metric]) -> str:
    """The text of these metrics."""
    return "".join(f"{line}\n" for metric in metrics for line in format_metric(metric))


def format_metric(metric: Metric) -> Iterator[str]:
    instrument = metric.instrument
    name = instrument.prometheus_name
    yield f"# HELP {name} {instrument.help}"
    yield f"# TYPE {name} {TYPES[instrument.type]}"
    for labels, value in sorted(metric.series.items()):
        if isinstance(value, Buckets):
            yield from format_histogram(instrument, labels, value)
        else:
            yield f"{name}{format_labels(instrument, labels)} {format_number(value)}"


def format_histogram(instrument: Instrument, labels: Labels, value: Buckets) -> Iterator[str]:
    name, reached = instrument.prometheus_name, 0
    for bound, count in zip((*instrument.bounds, float("inf")), value.counts, strict=True):
        reached += count
        yield f"{name}_bucket{format_labels(instrument, labels, le=format_number(bound))} {reached}"
    yield f"{name}_sum{format_labels(instrument, labels)} {format_number(value.sum)}"
    yield f"{name}_count{format_labels(instrument, labels)} {reached}"


def format_labels(instrument: Instrument, labels: Labels, **more: str) -> str:
    pairs = [*zip(instrument.prometheus_labels, labels, strict=True), *more.items()]
    inside = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)
    return f"{{{inside}}}" if inside else ""


def format_number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
