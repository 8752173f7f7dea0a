"""retrysafe.otel: metrics, spans, and the link from a replay to the run that made its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from retrysafe import Answer, RetrySafe, otel
from retrysafe.core.ops import List
from retrysafe.core.trace_context import encode_traceparent, read_span, read_traceparent
from retrysafe.engine.instruments import BY_NAME
from retrysafe.engine.sealing import KeyRing
from retrysafe.errors import FingerprintMismatch, UsageError


class Telemetry:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    def instrument(self, safe: RetrySafe, **options: Any) -> RetrySafe:
        otel.instrument(safe, self.meters, self.tracers, **options)
        return safe

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def points(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        assert scope.scope.name == "retrysafe"
        for metric in scope.metrics:
            assert metric.unit == BY_NAME[metric.name].unit
        return {
            metric.name: [(dict(point.attributes or {}), point) for point in metric.data.data_points]
            for metric in scope.metrics
        }


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.meters.shutdown()
    made.tracers.shutdown()


def test_counters_are_read_and_durations_recorded(telemetry: Telemetry) -> None:
    safe = telemetry.instrument(RetrySafe("memory://"))

    @safe.once("charge:{order}")
    def charge(order: int) -> float:
        return 1 / order

    charge(1)
    charge(1)
    with pytest.raises(ZeroDivisionError):
        charge(0)
    target = charge.__module__ + "." + charge.__qualname__
    points = telemetry.points()
    claims = {each["outcome"]: point.value for each, point in points["retrysafe.claims"]}
    assert claims == {"new": 2, "replayed": 1}
    durations = {each.get("error.type"): point for each, point in points["retrysafe.execution.duration"]}
    assert set(durations) == {None, "ZeroDivisionError"}
    assert durations[None].count == 1
    assert durations[None].explicit_bounds == BY_NAME["retrysafe.execution.duration"].bounds
    assert durations[None].attributes == {"kind": "function", "target": target}
    ((active, point),) = points["retrysafe.executions.active"]
    assert (active, point.value) == ({"kind": "function"}, 0)
    assert "retrysafe.store.operation.duration" not in points  # only on request


def test_store_calls_are_recorded_on_request(telemetry: Telemetry) -> None:
    safe = telemetry.instrument(RetrySafe("memory://"), store_calls=True)
    safe.once("pay:{order}")(pay)(1)
    ((attributes, point), _) = telemetry.points()["retrysafe.store.operation.duration"]
    assert attributes == {"operation": "claim", "db.system.name": "memory"}
    assert point.count == 1


def test_an_execution_is_a_span_and_what_it_does_is_inside(telemetry: Telemetry) -> None:
    safe = telemetry.instrument(RetrySafe("memory://"))
    tracer = telemetry.tracers.get_tracer("test")

    @safe.once("charge:{order}")
    def charge(order: int) -> int:
        with tracer.start_as_current_span("call the provider"):
            return order

    with tracer.start_as_current_span("request") as request:
        charge(1)
        assert request.attributes["retrysafe.claim.outcome"] == "new"  # type: ignore[attr-defined]
    spans = telemetry.spans()
    execution = spans[f"execute {charge.__module__}.{charge.__qualname__}"]
    assert spans["call the provider"].parent.span_id == execution.context.span_id  # type: ignore[union-attr]
    assert execution.parent.span_id == spans["request"].context.span_id  # type: ignore[union-attr]
    assert "charge:1" not in str([span.to_json() for span in spans.values()])  # S28


async def test_on_an_event_loop_a_failed_execution_says_what_failed(telemetry: Telemetry) -> None:
    safe = telemetry.instrument(RetrySafe("memory://"))

    @safe.once("charge:{order}")
    async def charge(order: int) -> float:
        return 1 / order

    with pytest.raises(ZeroDivisionError):
        await charge(0)
    (span,) = telemetry.exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["error.type"] == "ZeroDivisionError"
    assert not span.status.is_ok
    await safe.aclose()


@pytest.mark.parametrize("keyring", [None, KeyRing({"k1": bytes(range(32))})], ids=["plain", "sealed"])
def test_a_replay_links_to_the_run_that_made_its_answer(telemetry: Telemetry, keyring: KeyRing | None) -> None:
    safe = telemetry.instrument(RetrySafe("memory://", keyring=keyring))
    tracer = telemetry.tracers.get_tracer("test")
    charge = safe.once("charge:{order}")(pay)
    with tracer.start_as_current_span("first") as first:
        charge(1)
    with tracer.start_as_current_span("second"):
        charge(1)
    with tracer.start_as_current_span("another"):
        charge(2)
    spans = telemetry.spans()
    (link,) = spans["second"].links
    assert (link.context.trace_id, link.context.span_id) == (
        first.get_span_context().trace_id,
        first.get_span_context().span_id,
    )
    assert not spans["first"].links
    assert not spans["another"].links


def pay(order: int) -> int:
    return order


def lend(order: int, amount: int) -> int:
    return amount


def test_a_mismatch_gets_no_link(telemetry: Telemetry) -> None:
    """It must not learn which run has the key (I9)."""
    safe = telemetry.instrument(RetrySafe("memory://"))
    tracer = telemetry.tracers.get_tracer("test")
    charge = safe.once("charge:{order}")(lend)
    with tracer.start_as_current_span("first"):
        charge(1, 1)
    with tracer.start_as_current_span("second"), pytest.raises(FingerprintMismatch):
        charge(1, 2)
    assert not telemetry.spans()["second"].links


def test_a_foreign_step_is_a_span(telemetry: Telemetry) -> None:
    safe = telemetry.instrument(RetrySafe("memory://"))
    order = safe.operation("order")

    @order.foreign
    def charge(amount: int, *, key: str) -> int:
        return amount

    @order.body
    def body(amount: int) -> int:
        return charge(amount)

    order(7, key="o1")
    spans = telemetry.spans()
    step, execution = spans["step charge"], spans["execute order@1"]
    assert step.parent is not None
    assert step.parent.span_id == execution.context.span_id


def test_instrumenting_after_the_first_call_is_refused(telemetry: Telemetry) -> None:
    safe = RetrySafe("memory://")
    safe.once("pay:{order}")(pay)(1)
    with pytest.raises(UsageError, match="before the first call"):
        telemetry.instrument(safe)


def test_the_entry_point_instruments_what_is_made_from_then_on(telemetry: Telemetry) -> None:
    (found,) = entry_points(group="opentelemetry_instrumentor", name="retrysafe")
    instrumentor = found.load()()
    instrumentor.instrument(meter_provider=telemetry.meters, tracer_provider=telemetry.tracers)
    try:
        RetrySafe("memory://").once("pay:{order}")(pay)(1)
    finally:
        instrumentor.uninstrument()
    assert len(telemetry.exporter.get_finished_spans()) == 1
    RetrySafe("memory://").once("pay:{order}")(pay)(1)
    assert len(telemetry.exporter.get_finished_spans()) == 1


def test_the_record_keeps_the_traceparent_of_its_first_run(telemetry: Telemetry) -> None:
    safe = telemetry.instrument(RetrySafe("memory://"))
    with telemetry.tracers.get_tracer("test").start_as_current_span("first") as first:
        safe.once("pay:{order}")(pay)(1)
    (record,) = safe.execute(List()).records
    assert read_span(read_traceparent(record)) is not None
    assert read_traceparent(record).split("-")[1] == f"{first.get_span_context().trace_id:032x}"


@pytest.mark.parametrize("arguments", [{}, {"order": 7}, {"order": "é" * 300, "note": " \t\n"}])
@pytest.mark.parametrize("keyring", [None, KeyRing({"a": b"k" * 32})])
def test_an_operation_keeps_it_behind_its_arguments(
    arguments: dict[str, Any], keyring: KeyRing | None, telemetry: Telemetry
) -> None:
    safe = telemetry.instrument(RetrySafe("memory://", keyring=keyring))
    place, given = safe.operation("place"), []

    @place.body
    def body(order: Any = None, note: str = "") -> Answer:
        given.append({"order": order, "note": note})
        return Answer(201)

    with telemetry.tracers.get_tracer("test").start_as_current_span("first") as first:
        place(**arguments, key="k")
    with telemetry.tracers.get_tracer("test").start_as_current_span("second") as second:
        place(**arguments, key="k")
    (record,) = safe.execute(List()).records
    found = read_span(read_traceparent(record))
    assert found is not None
    assert (found.trace_id, found.span_id) == (first.get_span_context().trace_id, first.get_span_context().span_id)
    assert json.loads(record.input) == arguments | ({} if "order" in arguments else {"order": None}) | (
        {} if "note" in arguments else {"note": ""}
    )
    assert given == [{"order": None, "note": ""} | arguments]
    assert isinstance(second, ReadableSpan)
    assert [link.context.trace_id for link in second.links] == [found.trace_id], "the replay links to the first run"


@pytest.mark.parametrize(
    "text", ["", "00-0", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", '{"a": 1}', "00-é", "[1]", "0" * 55]
)
def test_what_is_no_traceparent_is_not_kept(text: str) -> None:
    assert encode_traceparent(text) == b""
    assert read_span(text) is None
