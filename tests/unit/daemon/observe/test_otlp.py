"""What is sent of spans holds no secret, and that it cannot be sent is told once."""

import logging
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, Status, StatusCode

from natsctl.daemon.observe.otlp import FailureLog, HidingExporter

URL = "nats://ann:hush@hub"
SHOWN = "nats://***@hub"


class Kept(SpanExporter):
    """Keeps what it is given, and answers as it is told to."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.answer: SpanExportResult | Exception = SpanExportResult.SUCCESS
        self.ends = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if isinstance(self.answer, Exception):
            raise self.answer
        self.spans += spans
        return self.answer

    def shutdown(self) -> None:
        self.ends += 1


def test_a_span_is_sent_as_it_is_but_for_secrets() -> None:
    kept = Kept()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(HidingExporter(kept, FailureLog("there"))))
    tracer = provider.get_tracer("mine", "7")
    with tracer.start_as_current_span("outer") as outer:
        links = [Link(outer.get_span_context())]
        with tracer.start_as_current_span(f"to {URL}", links=links) as span:
            span.set_attributes({"a": URL, "b": [URL, "c"], "d": 1, "e": [1, 2], "f": True})
            span.add_event("asked", {"where": URL}, timestamp=7)
            span.set_status(Status(StatusCode.ERROR, f"no {URL}"))
    sent, _ = kept.spans
    assert (sent.name, sent.kind) == (f"to {SHOWN}", span.kind)  # type: ignore[attr-defined]
    assert sent.attributes == {"a": SHOWN, "b": [SHOWN, "c"], "d": 1, "e": (1, 2), "f": True}
    assert [(each.name, each.attributes, each.timestamp) for each in sent.events] == [
        ("asked", {"where": SHOWN}, 7)
    ]
    assert (sent.status.status_code, sent.status.description) == (StatusCode.ERROR, f"no {SHOWN}")
    assert sent.parent == outer.get_span_context()
    assert sent.context == span.get_span_context()
    assert sent.links == span.links  # type: ignore[attr-defined]
    assert (sent.start_time, sent.end_time) == (span.start_time, span.end_time)  # type: ignore[attr-defined]
    assert sent.instrumentation_scope is not None
    assert sent.instrumentation_scope.name == "mine"
    assert sent.resource == provider.resource


def test_trouble_is_told_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "natsctl.daemon.observe.otlp")
    kept = Kept()
    exporter = HidingExporter(kept, FailureLog("there"))
    for answer in (
        SpanExportResult.SUCCESS,
        SpanExportResult.FAILURE,
        OSError("no route"),
        SpanExportResult.SUCCESS,
        OSError("no route"),
    ):
        kept.answer = answer
        exporter.export(())
    assert caplog.messages == [
        "cannot send spans, syncing continues url=there error='the collector rejected them'",
        "sending spans again url=there",
        "cannot send spans, syncing continues url=there error='OSError: no route'",
    ]


def test_what_the_exporter_logs_is_told_in_our_words(caplog: pytest.LogCaptureFixture) -> None:
    theirs = logging.getLogger("theirs")
    failures = FailureLog("there")
    theirs.addFilter(failures)
    theirs.error("no %s", "route")
    theirs.error("again")
    theirs.removeFilter(failures)
    assert caplog.messages == ["cannot send spans, syncing continues url=there error='no route'"]


def test_an_end_is_one_end() -> None:
    kept = Kept()
    exporter = HidingExporter(kept, FailureLog("there"))
    exporter.shutdown()
    exporter.shutdown()
    assert kept.ends == 1
