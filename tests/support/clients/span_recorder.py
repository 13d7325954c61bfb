"""Records spans in memory with OpenTelemetry's SDK."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from natsctl.telemetry.tracing import collected_by


class Recording:
    """The recorded spans, in the order in which they ended."""

    def __init__(self, sampler: Sampler) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def below(self, parent: ReadableSpan) -> list[ReadableSpan]:
        return [span for span in self.spans if span.parent == parent.context]


@contextmanager
def recording(*, sampler: Sampler = ALWAYS_ON) -> Iterator[Recording]:
    """Record natsctl's spans during the context."""
    recorded = Recording(sampler)
    with collected_by(recorded.provider):
        yield recorded
