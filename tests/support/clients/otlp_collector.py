"""A collector of spans: an OTLP/HTTP server that decodes with OpenTelemetry's messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent


class CollectedSpan(NamedTuple):
    """A received span with the name of its service, and its error message if it failed."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    facts: dict[str, object]
    events: list[str]
    error: str | None

    @classmethod
    def of(cls, service: str, sent: Sent) -> Self:
        ids = (sent.trace_id.hex(), sent.span_id.hex(), sent.parent_span_id.hex())
        error = sent.status.message if sent.status.code == 2 else None
        events = [event.name for event in sent.events]
        return cls(service, sent.name, *ids, _read(sent.attributes), events, error)


class Collector:
    """The received requests and their spans."""

    def __init__(self) -> None:
        self.url = ""
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []

    @property
    def spans(self) -> list[CollectedSpan]:
        return [
            CollectedSpan.of(str(_read(resource.resource.attributes)["service.name"]), span)
            for body in self.bodies
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> list[CollectedSpan]:
        return [span for span in self.spans if span.name == name]

    def below(self, parent: CollectedSpan) -> list[CollectedSpan]:
        return [span for span in self.spans if span.parent == parent.id]

    async def take(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        self.bodies.append(await request.read())
        return web.Response(content_type="application/x-protobuf")


@asynccontextmanager
async def collecting(port: int = 0) -> AsyncIterator[Collector]:
    """Receive spans on `/v1/traces` during the context."""
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        await runner.cleanup()


def _read(attributes: "list[KeyValue]") -> dict[str, object]:
    values = {}
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        values[attribute.key] = getattr(attribute.value, kind or "string_value")
    return values
