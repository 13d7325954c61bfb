"""Spans of syncs, watches and calls, recorded by OpenTelemetry.

A span is recorded only if the process has an OpenTelemetry SDK: the SDK of `natsctl run --otlp`, or
one that the program has set up. Otherwise `_tracer` returns None and no span is created,
because a span of the API's no-op tracer costs 7 µs, and a check costs 0.2 µs.
"""

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from natsctl.telemetry.exceptions import ErrorClass, classify
from natsctl.telemetry.hiding import TRACEBACK_MAX, error_text, hidden_with

if TYPE_CHECKING:  # it takes 60 ms to import: only a process that records spans does
    from opentelemetry.trace import Span as RecordedSpan
    from opentelemetry.trace import Tracer, TracerProvider

SDK = "opentelemetry.sdk.trace"
SCOPE = "natsctl"  # the instrumentation scope of all spans

Attributes = Mapping[str, object]
"""The attributes of a span by name; a value other than a number or boolean is sent as text."""

Errors = tuple[type[Exception], ...]


class Span:
    """A span that ends with its `with` statement.

    Spans that begin inside the `with`, in the same task or in a task created there, are children of
    this span. All methods do nothing if nothing records the span.

    Args:
        recorded: the span of the SDK, if there is one.
        expected: errors that don't count as a failure.
    """

    def __init__(self, recorded: "RecordedSpan | None" = None, expected: Errors = ()) -> None:
        self._recorded = recorded
        self._expected = expected
        self._token: Any = None

    def __enter__(self) -> Self:
        if self._recorded is not None:
            active = _api("trace").set_span_in_context(self._recorded)
            self._token = _api("context").attach(active)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the span, as failed if an unexpected error leaves the `with`."""
        if self._recorded is None:
            return
        if error is not None and not isinstance(error, self._expected):
            error_class = classify(error)
            if isinstance(error, Exception) and error_class.failed:
                self.fail(error)
            elif error_class is ErrorClass.CANCELLED:
                self.note({"natsctl.cancelled": True})
        self.end()

    def note(self, attributes: Attributes) -> None:
        if self._recorded is not None and self._recorded.is_recording():
            self._recorded.set_attributes(_attributes(attributes))

    def fail(self, error: Exception) -> None:
        if self._recorded is None or not self._recorded.is_recording():
            return
        trace = _api("trace")
        self._recorded.set_status(trace.Status(trace.StatusCode.ERROR, error_text(error)))
        name, message = _type_name(error), hidden_with(error, str(error))
        attributes = {"exception.type": name, "exception.message": message}
        if classify(error) is ErrorClass.UNEXPECTED:
            stack = "".join(traceback.format_exception(error))
            attributes["exception.stacktrace"] = hidden_with(error, stack, limit=TRACEBACK_MAX)
        self._recorded.set_attribute("error.type", name)
        self._recorded.add_event("exception", attributes)

    def end(self) -> None:
        if self._recorded is not None and self._token is not None:
            _api("context").detach(self._token)
            self._token = None
            self._recorded.end()


_UNRECORDED = Span()


def records_spans() -> bool:
    """Return whether anything records spans."""
    return SDK in sys.modules and _tracer() is not None


def sync_span(controller: str, attributes: Callable[[], Attributes]) -> Span:
    """Return the span of a sync, which has no parent unless the program has started a span.

    `RetryAfter` isn't a failure.

    Args:
        controller: the name of the controller.
        attributes: returns further attributes, and is called only if the span is recorded. A name
            `x` becomes `natsctl.x`.
    """
    tracer = _tracer()
    if tracer is None:
        return _UNRECORDED
    prefixed = {f"natsctl.{name}": value for name, value in attributes().items()}
    span = tracer.start_span(f"sync {controller}", attributes=_attributes(prefixed))
    span.set_attribute("natsctl.controller", controller)
    return Span(span)


def watch_span(kind: str, attributes: Callable[[], Attributes]) -> Span:
    """Return the span of a watch of *kind* while the watch is being established.

    The span has no parent, because a watch outlives the sync that starts it. *attributes* is called
    only if the span is recorded.
    """
    tracer = _tracer()
    if tracer is None:
        return _UNRECORDED
    all_attributes = _attributes({"natsctl.kind": kind, **attributes()})
    no_parent = _api("context").Context()
    return Span(tracer.start_span(f"watch {kind}", no_parent, attributes=all_attributes))


def call_span(describe: Callable[[], tuple[str, Attributes]], *, expected: Errors = ()) -> Span:
    """Return the span of a call to another system, as a child of the current span.

    A call without a current span isn't recorded: the renewal of a lease belongs to no trace.

    Args:
        describe: returns the name and the attributes, and is called only if the span is recorded.
        expected: errors that don't count as a failure.
    """
    tracer = _tracer()
    if tracer is None or _current_span() is None:
        return _UNRECORDED
    name, attributes = describe()
    span = tracer.start_span(
        name, kind=_api("trace").SpanKind.CLIENT, attributes=_attributes(attributes)
    )
    return Span(span, expected)


def trace_ids() -> dict[str, str]:
    """Return `trace_id` and `span_id` of the current span; empty if nothing is recorded."""
    span = _current_span()
    if span is None:
        return {}
    ids, trace = span.get_span_context(), _api("trace")
    return {
        "trace_id": trace.format_trace_id(ids.trace_id),
        "span_id": trace.format_span_id(ids.span_id),
    }


def trace_headers() -> tuple[tuple[str, str], ...]:
    """Return the HTTP headers that name the current span (W3C Trace Context), if there is one."""
    if _current_span() is None:
        return ()
    headers: dict[str, str] = {}
    _api("trace.propagation.tracecontext").TraceContextTextMapPropagator().inject(headers)
    return tuple(headers.items())


@contextmanager
def collected_by(provider: "TracerProvider") -> Iterator[None]:
    """Let *provider* record spans while the context lasts.

    The default is the SDK's provider that the process has set with `set_tracer_provider`.
    """
    global _known  # noqa: PLW0603 - see `_tracer`
    previous, _known = _known, _tracer_of(provider)
    try:
        yield
    finally:
        _known = previous


_known: "Tracer | None" = None


def _tracer() -> "Tracer | None":
    global _known  # noqa: PLW0603 - a process never changes its provider
    if _known is None and SDK in sys.modules:
        trace = _api("trace")
        provider = trace.get_tracer_provider()
        if not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            _known = _tracer_of(provider)
    return _known


def _api(module: str) -> Any:
    return importlib.import_module(f"opentelemetry.{module}")


def _tracer_of(provider: "TracerProvider") -> "Tracer":
    from importlib.metadata import version  # noqa: PLC0415 - takes 20 ms

    return provider.get_tracer(SCOPE, version(SCOPE))


def _current_span() -> "RecordedSpan | None":
    if _tracer() is None:
        return None
    span: RecordedSpan = _api("trace").get_current_span()
    return span if span.is_recording() else None


def _attributes(attributes: Attributes) -> dict[str, str | bool | int | float]:
    return {
        name: value if isinstance(value, bool | int | float) else str(value)
        for name, value in attributes.items()
    }


def _type_name(error: Exception) -> str:
    module, name = type(error).__module__, type(error).__qualname__
    return name if module == "builtins" else f"{module}.{name}"
