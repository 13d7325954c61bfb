"""Sending spans to whoever collects them, over OTLP/HTTP, in the background.

What OpenTelemetry's own environment variables say holds: OTEL_SERVICE_NAME and
OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_BSP_* for what is kept and how often it is sent,
OTEL_EXPORTER_OTLP_* for headers, certificates, time-outs and compression.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
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

from natsctl.telemetry.hiding import TRACEBACK_MAX, Secrets, hidden
from natsctl.telemetry.logger import get_logger
from natsctl.telemetry.tracing import collected_by

log = get_logger(__name__)

PATH = "/v1/traces"
FLUSH_S = 3.0  # how long the last spans may take

_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")


@asynccontextmanager
async def sending(url: str) -> AsyncIterator[None]:
    """Record spans and send them to *url* for as long as the context lasts.

    *Guarantees.* Nobody waits for it but the end, for `FLUSH_S` at most. Spans that wait to be sent
    are bounded, 2048 where nobody says otherwise; others are dropped. That they cannot be sent is
    logged once, until they can again. No secret is in what is sent.

    Args:
        url: where they are taken; without a path, in `/v1/traces`.
    """
    with Secrets(_secrets(url)), _told_once(hidden(url)) as trouble:
        exporter = HidingExporter(OTLPSpanExporter(endpoint=_endpoint(url)), trouble)
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


class Trouble(logging.Filter):
    """Tells once that spans are not taken, until they are again."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self._told = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell in our own words what the exporter says, as often as it tries."""
        self.met(record.getMessage())
        return False

    def met(self, why: str) -> None:
        """Note that spans were not taken."""
        if not self._told:
            self._told = True
            log.warning("cannot send spans, syncing continues", url=self._where, error=why)

    def over(self) -> None:
        """Note that they were."""
        if self._told:
            self._told = False
            log.info("sending spans again", url=self._where)


class HidingExporter(SpanExporter):
    """Hands spans on without secrets, those that handlers make too."""

    def __init__(self, exporter: SpanExporter, trouble: Trouble) -> None:
        self._exporter = exporter
        self._trouble = trouble
        self._ended = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send them, in the thread that calls; never raises."""
        try:
            result = self._exporter.export([_hidden_span(span) for span in spans])
        except Exception as error:  # noqa: BLE001 - whatever it is, it harms nobody but spans
            self._trouble.met(f"{type(error).__name__}: {error}")
            return SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._trouble.over()
        else:
            self._trouble.met("the collector rejected them")
        return result

    def shutdown(self) -> None:
        """Send nothing more, and try nothing again."""
        if not self._ended:
            self._ended = True
            self._exporter.shutdown()


def _hidden_span(span: ReadableSpan) -> ReadableSpan:
    status = span.status
    if status.description is not None:
        status = Status(status.status_code, hidden(status.description))
    events = [
        Event(event.name, _hidden_all(event.attributes), event.timestamp) for event in span.events
    ]
    return ReadableSpan(
        name=hidden(span.name),
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes=_hidden_all(span.attributes),
        events=events,
        links=span.links,
        kind=span.kind,
        status=status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _hidden_all(attributes: Mapping[str, AttributeValue] | None) -> dict[str, AttributeValue]:
    return {name: _hidden_value(value) for name, value in (attributes or {}).items()}


def _hidden_value(value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return hidden(value, limit=TRACEBACK_MAX)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [hidden(each) for each in value if isinstance(each, str)] or value
    return value


@contextmanager
def _told_once(where: str) -> Iterator[Trouble]:
    """Have what the exporter logs told once."""
    theirs, trouble = logging.getLogger(trace_exporter.__name__), Trouble(where)
    theirs.addFilter(trouble)
    try:
        yield trouble
    finally:
        theirs.removeFilter(trouble)


async def _flushed(provider: TracerProvider) -> bool:
    """Say whether the last spans were sent in time. A thread that hangs does not keep us."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def flush() -> None:
        provider.shutdown()
        with suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=flush, name="last spans", daemon=True).start()
    try:
        async with asyncio.timeout(FLUSH_S):
            return await ended.wait()
    except TimeoutError:
        return False


def _endpoint(url: str) -> str:
    return url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}{PATH}"


def _resource() -> Resource:
    """Return what is sent of this process; what the environment says of it wins."""
    ours: dict[str, str | int] = {
        "service.name": "natsctl",
        "service.version": version("natsctl"),
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
    }
    return Resource.create(Resource(ours).merge(OTELResourceDetector().detect()).attributes)


def _secrets(url: str) -> Iterator[str]:
    """Return the credentials for the collector."""
    yield unquote(urlsplit(url).password or "")
    for name in _HEADERS:
        for header in os.environ.get(name, "").split(","):
            value = unquote(header.partition("=")[2]).strip()
            yield from (value, value.rpartition(" ")[2])
