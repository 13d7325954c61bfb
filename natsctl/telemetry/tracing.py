"""What was done because of what: spans for whoever collects them, in OpenTelemetry's words.

A span is recorded only where this process has an OpenTelemetry SDK: that of `natsctl run --otlp`,
or one that the program itself has set up. Nothing is imported to find that out. Where nobody else
has imported the SDK there is none, and what is returned here does nothing.
"""

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from natsctl.telemetry.classification import ErrorClass, classify
from natsctl.telemetry.hiding import TRACEBACK_MAX, error_text, hidden

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span as Recorder
    from opentelemetry.trace import Tracer, TracerProvider

SDK = "opentelemetry.sdk.trace"
SCOPE = "natsctl"  # who made a span, as OpenTelemetry calls it

Attributes = Mapping[str, object]
"""What is told of a span, by attribute; what is neither a number nor true or false, as a text."""

Errors = tuple[type[Exception], ...]


class Span:
    """A piece of work, which lasts from when it is made to the end of its `with`.

    What begins within the `with`, in the same task or in one made there, is part of it. This one
    is not recorded.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it, as failed where an error passes."""

    def note(self, facts: Attributes) -> None:
        """Tell more of it, unless it has ended."""

    def fail(self, error: Exception) -> None:
        """Tell that it failed, and how; secrets are hidden."""

    def end(self) -> None:
        """End it before its `with` does."""


_UNRECORDED = Span()


def sync_span(controller: str, about: Callable[[], Attributes]) -> Span:
    """Return the span of a sync, which is part of no other but a program's own.

    To ask for another try later (`RetryAfter`) is no failure.

    Args:
        controller: whose sync it is.
        about: says more of it, asked only where somebody records: an attribute `natsctl.x` for x.
    """
    tracer = _source.tracer()
    if tracer is None:
        return _UNRECORDED
    facts = {f"natsctl.{name}": fact for name, fact in about().items()}
    span = tracer.start_span(f"sync {controller}", attributes=_attributes(facts))
    span.set_attribute("natsctl.controller", controller)
    return _Recorded(span)


def watch_span(kind: str, facts: Callable[[], Attributes]) -> Span:
    """Return the span of a watch of that kind while it is established, which is part of no other.

    For whoever causes the watch may be gone when it is established again. See `sync_span`.
    """
    tracer = _source.tracer()
    if tracer is None:
        return _UNRECORDED
    from opentelemetry.context import Context  # noqa: PLC0415 - see the module

    attributes = _attributes({"natsctl.kind": kind, **facts()})
    return _Recorded(tracer.start_span(f"watch {kind}", Context(), attributes=attributes))


def call_span(describe: Callable[[], tuple[str, Attributes]], *, fine: Errors = ()) -> Span:
    """Return the span of a call to another system, as part of the one under way.

    *describe* returns its name and what it is about, asked only where somebody records. An error
    of those in *fine* is no failure.

    Where none is, nothing is recorded: what a process does by itself, such as renewing a lease, is
    part of nobody's trace. See `sync_span`.
    """
    tracer = _source.tracer()
    if tracer is None or _current() is None:
        return _UNRECORDED
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - see the module

    name, facts = describe()
    span = tracer.start_span(name, kind=SpanKind.CLIENT, attributes=_attributes(facts))
    return _Recorded(span, fine)


def trace_ids() -> dict[str, str]:
    """Return `trace_id` and `span_id` of the span under way; nothing where none is recorded."""
    span = _current()
    if span is None:
        return {}
    from opentelemetry.trace import format_span_id, format_trace_id  # noqa: PLC0415 - see the module

    ids = span.get_span_context()
    return {"trace_id": format_trace_id(ids.trace_id), "span_id": format_span_id(ids.span_id)}


def trace_headers() -> tuple[tuple[str, str], ...]:
    """Return the HTTP headers that name the span under way (W3C Trace Context), if there is one."""
    if _current() is None:
        return ()
    from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - see the module

    headers: dict[str, str] = {}
    tracecontext.TraceContextTextMapPropagator().inject(headers)
    return tuple(headers.items())


@contextmanager
def collected_by(provider: "TracerProvider") -> Iterator[None]:
    """Have *provider* record the spans made here while the context lasts.

    Without it that is the SDK's that the process has set up, with `set_tracer_provider`.
    """
    with _source.replaced(provider):
        yield


class _Source:
    """Where spans come from."""

    def __init__(self) -> None:
        self._tracer: Tracer | None = None

    def tracer(self) -> "Tracer | None":
        """Return what makes them; None where nobody records."""
        if self._tracer is None and SDK in sys.modules:
            from opentelemetry import trace  # noqa: PLC0415 - see the module

            provider = trace.get_tracer_provider()
            idle = trace.ProxyTracerProvider, trace.NoOpTracerProvider
            if not isinstance(provider, idle):
                self._tracer = _tracer_of(provider)  # a process has one, and keeps it
        return self._tracer

    @contextmanager
    def replaced(self, provider: "TracerProvider") -> Iterator[None]:
        before, self._tracer = self._tracer, _tracer_of(provider)
        try:
            yield
        finally:
            self._tracer = before


_source = _Source()


class _Recorded(Span):
    """A span that somebody collects."""

    def __init__(self, span: "Recorder", fine: Errors = ()) -> None:
        self._span = span
        self._fine = fine
        self._token: Token[Context] | None = None

    def __enter__(self) -> Self:
        from opentelemetry import context, trace  # noqa: PLC0415 - see the module

        self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, self._fine):
            found = classify(error)
            if isinstance(error, Exception) and found.failed:
                self.fail(error)
            elif found is ErrorClass.CANCELLED:
                self.note({"natsctl.cancelled": True})
        self.end()

    def note(self, facts: Attributes) -> None:
        if self._span.is_recording():
            self._span.set_attributes(_attributes(facts))

    def fail(self, error: Exception) -> None:
        if not self._span.is_recording():
            return
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - see the module

        self._span.set_status(Status(StatusCode.ERROR, error_text(error)))
        self._span.set_attribute("error.type", _type(error))
        self._span.add_event("exception", _exception(error))

    def end(self) -> None:
        if self._token is not None:
            from opentelemetry import context  # noqa: PLC0415 - see the module

            context.detach(self._token)
            self._token = None
            self._span.end()


def _current() -> "Recorder | None":
    """Return the span under way, if it is recorded and has not ended."""
    if _source.tracer() is None:
        return None
    from opentelemetry import trace  # noqa: PLC0415 - see the module

    span = trace.get_current_span()
    return span if span.is_recording() else None


def _tracer_of(provider: "TracerProvider") -> "Tracer":
    from importlib.metadata import version  # noqa: PLC0415 - it takes longer than all of this

    return provider.get_tracer(SCOPE, version(SCOPE))


def _attributes(facts: Attributes) -> dict[str, str | bool | int | float]:
    return {name: _attribute(fact) for name, fact in facts.items()}


def _attribute(fact: object) -> str | bool | int | float:
    return fact if isinstance(fact, bool | int | float) else str(fact)


def _exception(error: Exception) -> dict[str, str]:
    """Return the attributes of an exception, with the traceback of what nobody foresaw."""
    found = {"exception.type": _type(error), "exception.message": hidden(str(error))}
    if classify(error) is ErrorClass.UNEXPECTED:
        stack = "".join(traceback.format_exception(error))
        found["exception.stacktrace"] = hidden(stack, limit=TRACEBACK_MAX)
    return found


def _type(error: Exception) -> str:
    kind = type(error)
    named = kind.__module__ != "builtins"
    return f"{kind.__module__}.{kind.__qualname__}" if named else kind.__qualname__
