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
from functools import partial
from importlib.metadata import version
from urllib.parse import unquote, urlsplit

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
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
    logger = logging.getLogger(trace_exporter.__name__)
    with Secrets(_secrets(url)), ExitStack() as stack:
        exporter = _Exporter(endpoint, hidden(url))
        logger.addFilter(exporter.filter)
        stack.callback(logger.removeFilter, exporter.filter)
        attributes: dict[str, AttributeValue] = {
            "service.name": "natsctl",
            "service.version": version("natsctl"),
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
        }
        own = Resource(attributes).merge(OTELResourceDetector().detect())  # its variables win
        resource = Resource.create(own.attributes)
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(provider)  # for the spans of handlers
        with collected_by(provider):
            try:
                yield
            finally:
                sent = asyncio.Event()
                # a daemon thread, because one of the loop's executor would delay the exit
                flush = partial(_flush, provider, asyncio.get_running_loop(), sent)
                threading.Thread(target=flush, name="last spans", daemon=True).start()
                if not await happens(sent, within_s=FLUSH_S):
                    log.warning("cannot send the last spans in time", timeout_s=FLUSH_S)
                    exporter.shutdown()


class _Exporter(OTLPSpanExporter):
    """Sends spans without secrets; logs a failure once, until sending succeeds again.

    As a filter of the exporter's logger, it replaces the lines that the exporter logs at each try.
    """

    def __init__(self, endpoint: str, url: str) -> None:
        super().__init__(endpoint=endpoint)
        self._url = url
        self._failing = self._ended = False

    def filter(self, record: logging.LogRecord) -> bool:
        self._note(record.getMessage())
        return False

    def _note(self, error: str) -> None:
        if error and not self._failing:
            log.warning("cannot send spans, syncing continues", url=self._url, error=error)
        elif self._failing and not error:
            log.info("sending spans again", url=self._url)
        self._failing = bool(error)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = super().export([_hidden_span(span) for span in spans])
        except Exception as error:  # noqa: BLE001 - no error of an exporter may end its thread
            self._note(error_text(error))
            return SpanExportResult.FAILURE
        succeeded = result is SpanExportResult.SUCCESS
        self._note("" if succeeded else "the collector rejected them")
        return result

    def shutdown(self) -> None:
        if not self._ended:
            self._ended = True
            super().shutdown()  # type: ignore[no-untyped-call]


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


def _flush(provider: TracerProvider, loop: asyncio.AbstractEventLoop, sent: asyncio.Event) -> None:
    provider.shutdown()
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(sent.set)


def _secrets(url: str) -> Iterator[str]:
    yield unquote(urlsplit(url).password or "")
    for name in _HEADER_VARIABLES:
        for header in os.environ.get(name, "").split(","):
            value = unquote(header.partition("=")[2]).strip()
            yield from (value, value.rpartition(" ")[2])
