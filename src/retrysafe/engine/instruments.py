"""The instruments: every figure that retrysafe exports, as a table. The exporters, the reference page
(docs/reference/metrics.md) and the tests read it.

Names and units follow OpenTelemetry: dots in names, seconds, `{claim}` for things that are counted. `prometheus_name`
makes the name that Prometheus shows, by the rules of OpenTelemetry's own translation. So rules and dashboards fit,
whichever exporter is used. Ratios are computed from these, never exported.

No label ever holds a key, a scope, a tenant or a path (S28). `target` is a route template or a declared name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from retrysafe.engine.figures import (
    BATCH_SIZES,
    DELAY_SECONDS,
    EXECUTION_SECONDS,
    STORE_SECONDS,
    Figures,
    Labels,
    Metric,
)

if TYPE_CHECKING:
    from retrysafe.engine.figures import Buckets

InstrumentType = Literal["counter", "updown", "gauge", "histogram"]
Source = Literal["process", "worker"]


class Instrument(NamedTuple):
    """One figure. `labels` are its attributes, in the order in which they are counted."""

    name: str
    type: InstrumentType
    unit: str
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets."""
    source: Source = "process"
    """`worker`: read from the store, and only by the worker. Every process would say the same."""

    @property
    def prometheus_name(self) -> str:
        name = self.name.replace(".", "_")
        if self.unit == "s":
            name += "_seconds"
        return f"{name}_total" if self.type == "counter" else name

    @property
    def prometheus_labels(self) -> tuple[str, ...]:
        return tuple(label.replace(".", "_") for label in self.labels)


CLAIMS = Instrument(
    "retrysafe.claims", "counter", "{claim}", ("outcome", "kind", "target"),
    "claims of a key, by outcome: new, replayed, busy, mismatched, uncertain, reclaimed",
)  # fmt: skip
REQUESTS = Instrument(
    "retrysafe.requests", "counter", "{request}", ("key", "target"),
    "HTTP requests to protected routes, by what was sent as key: present, missing, malformed",
)  # fmt: skip
SETTLEMENTS = Instrument(
    "retrysafe.settlements", "counter", "{settlement}", ("outcome", "kind"),
    "ends of an attempt, by outcome: completed, released, withdrawn, suspected, resolved, unrecorded",
)  # fmt: skip
RENEWALS = Instrument(
    "retrysafe.lease.renewals", "counter", "{renewal}", ("outcome",),
    "renewals of leases, by outcome: renewed, failed, lost",
)  # fmt: skip
EXECUTIONS = Instrument(
    "retrysafe.execution.duration", "histogram", "s", ("kind", "target", "error.type"),
    "how long the protected work ran; error.type is empty if it succeeded", EXECUTION_SECONDS,
)  # fmt: skip
STORE_OPERATIONS = Instrument(
    "retrysafe.store.operation.duration", "histogram", "s", ("operation", "db.system.name", "error.type"),
    "how long the store took for one operation, with the wait for a batch; error.type is empty if it answered",
    STORE_SECONDS,
)  # fmt: skip
BATCHES = Instrument(
    "retrysafe.store.batch.size", "histogram", "{operation}", ("operation",),
    "how many operations that had to wait were sent to the store together; `mixed`: of several kinds",
    BATCH_SIZES,
)  # fmt: skip
ACTIVE = Instrument(
    "retrysafe.executions.active", "updown", "{execution}", ("kind",),
    "work that runs in this process now",
)  # fmt: skip
RECORDS = Instrument(
    "retrysafe.records", "gauge", "{record}", ("state",),
    "records that are open or due: claimed, lapsed (of the claimed, those whose lease is over), uncertain, expired",
    source="worker",
)  # fmt: skip
IN_PROGRESS_AGE = Instrument(
    "retrysafe.in_progress.age.max", "gauge", "s", (),
    "how long ago the oldest attempt in progress began; 0 if there is none", source="worker",
)  # fmt: skip
UNCERTAIN_AGE = Instrument(
    "retrysafe.uncertain.age.max", "gauge", "s", (),
    "how long ago the oldest uncertain attempt began; 0 if there is none", source="worker",
)  # fmt: skip
OUTBOX_AGE = Instrument(
    "retrysafe.outbox.age.max", "gauge", "s", (),
    "how long ago the oldest pending job of the outbox was staged; 0 if there is none", source="worker",
)  # fmt: skip
REAPER_LAG = Instrument(
    "retrysafe.reaper.lag", "gauge", "s", (),
    "how long ago the oldest record that the reaper may delete expired; 0 if there is none", source="worker",
)  # fmt: skip
OUTBOX_MESSAGES = Instrument(
    "retrysafe.outbox.messages", "gauge", "{message}", ("state",),
    "jobs in the outbox: pending, dead", source="worker",
)  # fmt: skip
OUTBOX_DELAY = Instrument(
    "retrysafe.outbox.delay", "histogram", "s", ("publisher",),
    "from the staging of a job to its delivery, by the topic of its publisher", DELAY_SECONDS,
)  # fmt: skip
RUNS = Instrument(
    "retrysafe.operation.runs", "counter", "{run}", ("operation", "outcome"),
    "runs of operations that ended: finished, stopped, undone, undo_failed",
)  # fmt: skip
ROUNDS = Instrument(
    "retrysafe.worker.rounds", "counter", "{round}", ("service", "outcome"),
    "rounds of the worker's services: done, failed",
)  # fmt: skip
ACTIONS = Instrument(
    "retrysafe.operator.actions", "counter", "{action}", ("action", "outcome"),
    "what people did to records through this process: done, refused",
)  # fmt: skip

INSTRUMENTS = (
    CLAIMS, REQUESTS, SETTLEMENTS, RENEWALS, EXECUTIONS, STORE_OPERATIONS, BATCHES, ACTIVE, RECORDS, IN_PROGRESS_AGE,
    UNCERTAIN_AGE, OUTBOX_AGE, REAPER_LAG, OUTBOX_MESSAGES, OUTBOX_DELAY, RUNS, ROUNDS, ACTIONS,
)  # fmt: skip

BY_NAME = {instrument.name: instrument for instrument in INSTRUMENTS}

# From what is counted to what is exported -------------------------------------------------------------

CLAIM_EVENTS = ("new", "replayed", "busy", "mismatched", "uncertain", "reclaimed")
SETTLEMENT_EVENTS = {
    "completed": "completed",
    "released": "released",
    "withdrawn": "withdrawn",
    "suspected": "suspected",
    "resolved": "resolved",
    "store_failed": "unrecorded",
}
RENEWAL_EVENTS = {"renewed": "renewed", "renew_failed": "failed", "lease_lost": "lost"}
OTHERS = {
    "requests": REQUESTS,
    "execution": EXECUTIONS,
    "batch": BATCHES,
    "active": ACTIVE,
    "outbox_delay": OUTBOX_DELAY,
    "runs": RUNS,
    "rounds": ROUNDS,
    "actions": ACTIONS,
}


def locate(what: str, labels: Labels, store: str) -> tuple[Instrument, Labels] | None:
    """The instrument of something that was counted, and the labels it has there. None for events that are only
    events."""
    if what in CLAIM_EVENTS:
        return CLAIMS, (what, *labels)
    if what in SETTLEMENT_EVENTS:
        return SETTLEMENTS, (SETTLEMENT_EVENTS[what], labels[0])
    if what in RENEWAL_EVENTS:
        return RENEWALS, (RENEWAL_EVENTS[what],)
    if what == "store":
        operation, error = labels
        return STORE_OPERATIONS, (operation.lower(), store, error)
    found = OTHERS.get(what)
    return None if found is None else (found, labels)


def gather(figures: Figures) -> list[Metric]:
    """Everything that was counted, by instrument, in the order of the table."""
    found: dict[str, dict[Labels, float | Buckets]] = {}

    def add(what: str, labels: Labels, value: float) -> None:
        place = locate(what, labels, figures.store)
        if place is not None:
            series = found.setdefault(place[0].name, {})
            series[place[1]] = series.get(place[1], 0) + value  # type: ignore[operator]  # a number, not buckets

    for what, labels, number in figures.list_counts():  # first: it sorts what was collected
        add(what, labels, number)
    for kind, number in list(figures.active.items()):
        add("active", (kind,), number)
    for histogram in (figures.execution, figures.store_calls, figures.batches, figures.outbox_delay):
        for labels, buckets in histogram.series().items():
            place = locate(histogram.what, labels, figures.store)
            if place is not None:
                found.setdefault(place[0].name, {})[place[1]] = buckets
    for (name, labels), gauge in list(figures.gauges.items()):
        found.setdefault(name, {})[labels] = gauge
    return [Metric(each, found[each.name]) for each in INSTRUMENTS if each.name in found]
