"""Exported spans hold no secrets, and a failed export is logged once."""

import logging
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, Status, StatusCode

from natsctl.daemon.otlp import FailureLog, HidingExporter

URL = "nats://ann:hush@hub"
SHOWN = "nats://***@hub"


class RecordingExporter(SpanExporter):
    """Keeps the spans, and returns or raises `result`."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.result: SpanExportResult | Exception = SpanExportResult.SUCCESS
        self.shutdowns = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if isinstance(self.result, Exception):
            raise self.result
        self.spans += spans
        return self.result

    def shutdown(self) -> None:
        self.shutdowns += 1


def test_a_span_is_exported_unchanged_except_for_secrets() -> None:
    recorder = RecordingExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        SimpleSpanProcessor(HidingExporter(recorder, FailureLog("collector")))
    )
    tracer = provider.get_tracer("mine", "7")
    with tracer.start_as_current_span("outer") as outer:
        links = [Link(outer.get_span_context())]
        with tracer.start_as_current_span(f"to {URL}", links=links) as span:
            span.set_attributes({"a": URL, "b": [URL, "c"], "d": 1, "e": [1, 2], "f": True})
            span.add_event("requested", {"where": URL}, timestamp=7)
            span.set_status(Status(StatusCode.ERROR, f"no {URL}"))
    sent, _ = recorder.spans
    assert (sent.name, sent.kind) == (f"to {SHOWN}", span.kind)  # type: ignore[attr-defined]
    assert sent.attributes == {"a": SHOWN, "b": [SHOWN, "c"], "d": 1, "e": (1, 2), "f": True}
    assert [(event.name, event.attributes, event.timestamp) for event in sent.events] == [
        ("requested", {"where": SHOWN}, 7)
    ]
    assert (sent.status.status_code, sent.status.description) == (StatusCode.ERROR, f"no {SHOWN}")
    assert sent.parent == outer.get_span_context()
    assert sent.context == span.get_span_context()
    assert sent.links == span.links  # type: ignore[attr-defined]
    assert (sent.start_time, sent.end_time) == (span.start_time, span.end_time)  # type: ignore[attr-defined]
    assert sent.instrumentation_scope is not None
    assert sent.instrumentation_scope.name == "mine"
    assert sent.resource == provider.resource


def test_a_failed_export_is_logged_once_until_an_export_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "natsctl.daemon.otlp")
    recorder = RecordingExporter()
    exporter = HidingExporter(recorder, FailureLog("collector"))
    for result in (
        SpanExportResult.SUCCESS,
        SpanExportResult.FAILURE,
        OSError("no route"),
        SpanExportResult.SUCCESS,
        OSError("no route"),
    ):
        recorder.result = result
        exporter.export(())
    assert caplog.messages == [
        "cannot send spans, syncing continues url=collector error='the collector rejected them'",
        "sending spans again url=collector",
        "cannot send spans, syncing continues url=collector error='OSError: no route'",
    ]


def test_an_error_that_the_exporter_logs_is_logged_as_a_failed_export(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter_logger = logging.getLogger("theirs")
    failures = FailureLog("collector")
    exporter_logger.addFilter(failures)
    exporter_logger.error("no %s", "route")
    exporter_logger.error("again")
    exporter_logger.removeFilter(failures)
    assert caplog.messages == [
        "cannot send spans, syncing continues url=collector error='no route'"
    ]


def test_a_second_shutdown_does_nothing() -> None:
    recorder = RecordingExporter()
    exporter = HidingExporter(recorder, FailureLog("collector"))
    exporter.shutdown()
    exporter.shutdown()
    assert recorder.shutdowns == 1
