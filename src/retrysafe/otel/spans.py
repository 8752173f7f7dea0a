"""Spans out of the trace (engine/trace.py): one around each execution, and one around each call of a foreign step."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import NamedTuple

from opentelemetry import context, trace
from opentelemetry.trace import Span, SpanContext, SpanKind, StatusCode, TraceFlags, Tracer

from retrysafe.core.trace_context import read_span
from retrysafe.engine.figures import Labels
from retrysafe.engine.instruments import CLAIM_EVENTS
from retrysafe.engine.trace import TraceEvent

SPANS = ("invoke", "step")
"""Spans of the trace that become spans of OpenTelemetry. The others are short, and belong to the span that is there."""


class OpenSpan(NamedTuple):
    span: Span
    token: Token[context.Context]


class SpanRecorder:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[int, OpenSpan] = {}
        self._first_run: ContextVar[str] = ContextVar("retrysafe_first_run", default="")
        """The traceparent in the record that the last claim of this request found."""

    def on_event(self, event: TraceEvent) -> None:
        name, _, moment = event.name.rpartition(".")
        if name == "claim" and moment == "complete":
            self._first_run.set(event.details.get("traceparent", ""))
        elif name in SPANS:
            if moment == "started":
                self._start(name, event)
            else:
                self._end(event)

    def on_figure(self, what: str, labels: Labels, by: float) -> None:
        """A claim was decided: say so on the span that is there. A replay links to the run that made its answer."""
        if what not in CLAIM_EVENTS:
            return
        span = trace.get_current_span()
        if not span.is_recording():
            return
        kind, target = labels
        span.set_attributes({"retrysafe.claim.outcome": what, "retrysafe.kind": kind, "retrysafe.target": target})
        first_run = read_span(self._first_run.get())
        if what == "replayed" and first_run is not None:
            span.add_link(
                SpanContext(*first_run[:2], is_remote=True, trace_flags=TraceFlags(first_run.flags)),
                {"retrysafe.link": "first_run"},
            )

    @staticmethod
    def current_traceparent() -> str:
        """The W3C traceparent of the span that is there; empty if there is none."""
        now = trace.get_current_span().get_span_context()
        if not now.is_valid:
            return ""
        return f"00-{now.trace_id:032x}-{now.span_id:016x}-{int(now.trace_flags):02x}"

    def _start(self, name: str, event: TraceEvent) -> None:
        details = event.details
        if name == "step":
            title, kind = f"step {details['step']}", SpanKind.CLIENT
        else:
            title, kind = f"execute {details['target']}", SpanKind.INTERNAL
        shown = {f"retrysafe.{key}": details[key] for key in ("kind", "target", "step", "attempt") if key in details}
        shown["retrysafe.record.id"] = details.get("id", "")
        span = self._tracer.start_span(title, kind=kind, attributes=shown)
        self._open[event.span] = OpenSpan(span, context.attach(trace.set_span_in_context(span)))

    def _end(self, event: TraceEvent) -> None:
        found = self._open.pop(event.span, None)
        if found is None:
            return
        context.detach(found.token)
        error = event.details.get("error")
        if error is not None:
            found.span.set_attribute("error.type", error)
            found.span.set_status(StatusCode.ERROR)
        found.span.end()
