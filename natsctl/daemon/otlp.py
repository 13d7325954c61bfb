"""Sends spans to a collector over OTLP/HTTP, in the background.

OpenTelemetry's environment variables apply: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES for the
resource, OTEL_TRACES_SAMPLER for sampling, OTEL_BSP_* for batches, and OTEL_EXPORTER_OTLP_* for
headers, certificates, timeouts and compression.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from urllib.parse import unquote, urlsplit

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Status
from opentelemetry.util.types import AttributeValue

from natsctl.telemetry.hiding import TRACEBACK_MAX, Secrets, error_text, hidden
from natsctl.telemetry.logger import get_logger
from natsctl.telemetry.tracing import collected_by
from natsctl.time_limit import happens

log = get_logger(__name__)

PATH = "/v1/traces"
FLUSH_S = 3.0  # the time for the last spans

_HEADER_VARIABLES = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")


@asynccontextmanager
async def sending(url: str) -> AsyncIterator[None]:
    """Record spans and send them to *url* while the context lasts.

    *Guarantees.* Sending delays only the end of the context, by `FLUSH_S` at most. The number of
    spans that wait is bounded, by default to 2048; further spans are dropped. A failure to send is
    logged once until sending succeeds. No secret is sent.

    Args:
        url: the URL of the collector; a URL without a path gets the path `/v1/traces`.
    """
    endpoint = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}{PATH}"
    logger, failures = logging.getLogger(trace_exporter.__name__), FailureLog(hidden(url))
    with Secrets(_secrets(url)), ExitStack() as stack:
        logger.addFilter(failures)
        stack.callback(logger.removeFilter, failures)
        exporter = HidingExporter(OTLPSpanExporter(endpoint=endpoint), failures)
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(provider)  # for the spans of handlers
        with collected_by(provider):
            try:
                yield
            finally:
                if not await _flushed(provider):
                    log.warning("cannot send the last spans in time", timeout_s=FLUSH_S)
                    exporter.shutdown()


class FailureLog(logging.Filter):
    """Logs a failure to send spans once, until sending succeeds again.

    As a filter of the exporter's logger, it replaces the lines that the exporter logs at each try.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._failing = False

    def filter(self, record: logging.LogRecord) -> bool:
        self.note(record.getMessage())
        return False

    def note(self, error: str) -> None:
        """Note the *error* of a try to send spans; empty if it succeeded."""
        if error and not self._failing:
            log.warning("cannot send spans, syncing continues", url=self._url, error=error)
        elif self._failing and not error:
            log.info("sending spans again", url=self._url)
        self._failing = bool(error)


class HidingExporter(SpanExporter):
    """Passes spans on without secrets, including the spans of handlers."""

    def __init__(self, exporter: SpanExporter, failures: FailureLog) -> None:
        self._exporter = exporter
        self._failures = failures
        self._ended = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export([_hidden_span(span) for span in spans])
        except Exception as error:  # noqa: BLE001 - no error of an exporter may end its thread
            self._failures.note(error_text(error))
            return SpanExportResult.FAILURE
        succeeded = result is SpanExportResult.SUCCESS
        self._failures.note("" if succeeded else "the collector rejected them")
        return result

    def shutdown(self) -> None:
        if not self._ended:
            self._ended = True
            self._exporter.shutdown()


def _hidden_span(span: ReadableSpan) -> ReadableSpan:
    status = span.status
    if status.description is not None:
        status = Status(status.status_code, hidden(status.description))

    def hide(attributes: Mapping[str, AttributeValue] | None) -> dict[str, AttributeValue]:
        return {name: _hidden_value(value) for name, value in (attributes or {}).items()}

    return ReadableSpan(
        name=hidden(span.name),
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes=hide(span.attributes),
        events=[Event(one.name, hide(one.attributes), one.timestamp) for one in span.events],
        links=span.links,
        kind=span.kind,
        status=status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _hidden_value(value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return hidden(value, limit=TRACEBACK_MAX)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [hidden(item) for item in value if isinstance(item, str)] or value
    return value


async def _flushed(provider: TracerProvider) -> bool:
    """Return whether the last spans were sent within `FLUSH_S`.

    A daemon thread sends them, because a thread of the loop's executor would delay the exit.
    """
    loop, sent = asyncio.get_running_loop(), asyncio.Event()

    def flush() -> None:
        provider.shutdown()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(sent.set)

    threading.Thread(target=flush, name="last spans", daemon=True).start()
    return await happens(sent, within_s=FLUSH_S)


def _resource() -> Resource:
    """Return the description of this process; OpenTelemetry's variables override it."""
    attributes: dict[str, str | int] = {
        "service.name": "natsctl",
        "service.version": version("natsctl"),
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
    }
    return Resource.create(Resource(attributes).merge(OTELResourceDetector().detect()).attributes)


def _secrets(url: str) -> Iterator[str]:
    yield unquote(urlsplit(url).password or "")
    for name in _HEADER_VARIABLES:
        for header in os.environ.get(name, "").split(","):
            value = unquote(header.partition("=")[2]).strip()
            yield from (value, value.rpartition(" ")[2])
