"""Prometheus, through the program's own registry of prometheus_client.

    from retrysafe import RetrySafe, prometheus

    safe = RetrySafe("postgresql://…")
    prometheus.register(safe)

In one process a collector reads `safe.figures` when Prometheus asks; a request pays nothing. In multiprocess mode
(PROMETHEUS_MULTIPROC_DIR) collectors of that kind are not asked, because each process writes its values into files.
There real metrics are used, and each figure is added to them as it is counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from retrysafe.engine.figures import Buckets, Figures, Labels, Metric
from retrysafe.engine.instruments import INSTRUMENTS, Instrument, locate
from retrysafe.errors import MissingDriver

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.core import Metric as PrometheusMetric
except ModuleNotFoundError as error:
    needed = "prometheus_client"
    raise MissingDriver("prometheus", error.name or needed, "prometheus", "retrysafe.prometheus") from error

__all__ = ["register"]

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe


def register(safe: RetrySafe, registry: CollectorRegistry = REGISTRY) -> None:
    """Export the figures of `safe` in `registry`. Call it once for each RetrySafe object. Two objects in one registry
    would export the same names: give each a registry of its own."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ or "prometheus_multiproc_dir" in os.environ:
        safe.figures.add_tap(MultiprocessTap(safe.figures, registry))
    else:
        registry.register(FiguresCollector(safe.figures))


class FiguresCollector:
    """Reads the figures when it is asked."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def describe(self) -> Iterable[PrometheusMetric]:
        """The names, without asking. The registry refuses a second metric with one of them."""
        return [build_family(Metric(instrument, {})) for instrument in INSTRUMENTS]

    def collect(self) -> Iterator[PrometheusMetric]:
        for metric in self._figures.snapshot():
            yield build_family(metric)


def build_family(metric: Metric) -> PrometheusMetric:
    instrument, labels = metric.instrument, metric.instrument.prometheus_labels
    name = instrument.prometheus_name
    if instrument.type == "histogram":
        histogram = HistogramMetricFamily(name, instrument.help, labels=labels)
        for at, value in metric.series.items():
            assert isinstance(value, Buckets)
            histogram.add_metric(at, list_buckets(instrument, value), value.sum)
        return histogram
    family = (CounterMetricFamily if instrument.type == "counter" else GaugeMetricFamily)(
        name, instrument.help, labels=labels
    )
    for at, value in metric.series.items():
        assert not isinstance(value, Buckets)
        family.add_metric(at, value)
    return family


def list_buckets(instrument: Instrument, value: Buckets) -> list[tuple[str, float]]:
    """The upper bound of each bucket, as text, and how many values are at or below it."""
    reached, found = 0, []
    for bound, count in zip((*instrument.bounds, float("inf")), value.counts, strict=True):
        reached += count
        found.append(("+Inf" if bound == float("inf") else repr(bound), float(reached)))
    return found


class MultiprocessTap:
    """Adds each figure to a real metric. Gauges that are read from the store are the worker's, which serves them at its
    own `/metrics`."""

    def __init__(self, figures: Figures, registry: CollectorRegistry) -> None:
        self._figures = figures
        self._metrics: dict[str, Counter | Gauge | Histogram] = {
            each.name: build_metric(each, registry) for each in INSTRUMENTS if each.source == "process"
        }
        self._children: dict[tuple[str, Labels], Counter | Gauge | Histogram] = {}
        for what, labels, _ in figures.list_counts():
            self(what, labels, 0)  # what is counted from zero is exported from zero

    def __call__(self, what: str, labels: Labels, by: float) -> None:
        child = self._children.get((what, labels))
        if child is None:
            place = locate(what, labels, self._figures.store)
            if place is None:
                return
            child = self._metrics[place[0].name].labels(*place[1])
            self._children[what, labels] = child
        if isinstance(child, Histogram):
            child.observe(by)
        else:
            child.inc(by)


def build_metric(instrument: Instrument, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    name, labels = instrument.prometheus_name, instrument.prometheus_labels
    if instrument.type == "histogram":
        return Histogram(name, instrument.help, labels, buckets=instrument.bounds, registry=registry)
    if instrument.type == "counter":
        return Counter(name, instrument.help, labels, registry=registry)
    return Gauge(name, instrument.help, labels, registry=registry, multiprocess_mode="livesum")
