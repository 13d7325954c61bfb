"""Syncs, calls and watches make spans if an OpenTelemetry SDK records them."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from natsctl.errors import NotFoundError, RetryAfter, StoreError
from natsctl.telemetry.tracing import (
    Span,
    call_span,
    collected_by,
    sync_span,
    trace_headers,
    trace_ids,
    watch_span,
)
from tests.support.clients.span_recorder import Recording, recording

ABOUT = {"key": "shop", "attempt": 2}


@pytest.fixture
def recorded() -> Iterator[Recording]:
    with recording() as recording_spans:
        yield recording_spans


def describe() -> tuple[str, dict[str, object]]:
    return "ask", {"a": 1, "b": True, "c": 0.5, "d": None}


def never() -> dict[str, object]:
    raise AssertionError("attributes of an unrecorded span were read")


def test_a_cancellation_does_not_change_a_span_that_ended(
    recorded: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    with suppress(asyncio.CancelledError), watch_span("Shop.shops", dict) as span:
        span.end()
        raise asyncio.CancelledError
    (ended,) = recorded.spans
    assert ended.attributes == {"natsctl.kind": "Shop.shops"}
    assert caplog.text == ""


def test_the_parent_of_a_call_is_its_sync(recorded: Recording) -> None:
    with sync_span("shops", lambda: ABOUT), call_span(describe):
        pass
    call, sync = recorded.spans
    assert (sync.name, sync.parent, sync.kind) == ("sync shops", None, SpanKind.INTERNAL)
    assert sync.attributes == {
        "natsctl.controller": "shops",
        "natsctl.key": "shop",
        "natsctl.attempt": 2,
    }
    assert (call.name, call.kind) == ("ask", SpanKind.CLIENT)
    assert call.parent == sync.context
    assert call.attributes == {"a": 1, "b": True, "c": 0.5, "d": "None"}


def test_a_call_outside_of_a_span_is_not_recorded(recorded: Recording) -> None:
    with call_span(lambda: ("ask", never())):
        assert trace_ids() == {}
        assert trace_headers() == ()
    assert recorded.spans == []


async def test_each_task_has_a_span_with_the_calls_of_its_subtasks(
    recorded: Recording,
) -> None:
    async def call() -> None:
        with call_span(describe):
            await asyncio.sleep(1)

    async def sync(key: str) -> None:
        with sync_span("shops", lambda: {"key": key}):
            await asyncio.gather(call(), call())

    await asyncio.gather(sync("a"), sync("b"))
    assert len(recorded.named("sync shops")) == 2
    for sync_parent in recorded.named("sync shops"):
        assert [span.name for span in recorded.below(sync_parent)] == ["ask", "ask"]


async def test_a_task_that_outlives_a_span_has_no_parent_span(recorded: Recording) -> None:
    async def later() -> None:
        await asyncio.sleep(1)
        assert trace_ids() == {}
        with call_span(describe):
            pass

    with sync_span("shops", dict):
        task = asyncio.create_task(later())
    await task
    assert [span.name for span in recorded.spans] == ["sync shops"]


def test_a_watch_has_no_parent_span(recorded: Recording) -> None:
    with sync_span("shops", dict), watch_span("Route.routes", lambda: {"a": 1}) as watch:
        with call_span(describe):
            pass
        watch.end()
        with call_span(describe):
            pass
    first, watched, second, sync = recorded.spans
    assert (watched.name, watched.parent) == ("watch Route.routes", None)
    assert watched.attributes == {"natsctl.kind": "Route.routes", "a": 1}
    assert first.parent == watched.context
    assert second.parent == sync.context


@pytest.mark.parametrize("error", [ValueError("at nats://ann:hush@hub"), StoreError("away")])
def test_a_failure_is_recorded_without_secrets(error: Exception, recorded: Recording) -> None:
    with pytest.raises(type(error)), sync_span("shops", dict):
        raise error
    (span,) = recorded.spans
    shown = "at nats://***@hub" if isinstance(error, ValueError) else "away"
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == f"{type(error).__name__}: {shown}"
    (event,) = span.events
    assert event.name == "exception"
    assert event.attributes is not None
    assert event.attributes["exception.message"] == shown
    traced = event.attributes.get("exception.stacktrace")
    if isinstance(error, ValueError):
        assert span.attributes is not None
        assert span.attributes["error.type"] == event.attributes["exception.type"] == "ValueError"
        assert str(traced).endswith("ValueError: at nats://***@hub\n")
    else:
        assert event.attributes["exception.type"] == "natsctl.errors.StoreError"
        assert traced is None  # an expected error has no traceback


def get_span() -> Span:
    """Return the span of a call for which NotFoundError is an expected result."""
    return call_span(describe, expected=(NotFoundError,))


def test_expected_errors_and_delays_are_not_failures(recorded: Recording) -> None:
    with pytest.raises(RetryAfter), sync_span("doors", dict):
        raise RetryAfter(5)
    with pytest.raises(NotFoundError), sync_span("shops", dict), get_span():
        raise NotFoundError("no")
    doors, call, shops = recorded.spans
    assert [span.status.status_code for span in (call, doors)] == [StatusCode.UNSET] * 2
    assert [span.events for span in (call, doors)] == [(), ()]
    assert shops.status.status_code is StatusCode.ERROR  # the error is a failure of the sync


async def test_a_cancelled_sync_is_not_a_failure(recorded: Recording) -> None:
    async def sync() -> None:
        with sync_span("shops", dict):
            await asyncio.sleep(3600)

    task = asyncio.create_task(sync())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait((task,))
    (span,) = recorded.spans
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes == {"natsctl.cancelled": True, "natsctl.controller": "shops"}


def test_a_running_span_gives_trace_ids_and_headers(recorded: Recording) -> None:
    with sync_span("shops", dict):
        ids, headers = trace_ids(), trace_headers()
    (span,) = recorded.spans
    trace, span_id = f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"
    assert ids == {"trace_id": trace, "span_id": span_id}
    ((name, value),) = headers
    assert name == "traceparent"
    assert value.startswith(f"00-{trace}-{span_id}-0")
    assert (trace_ids(), trace_headers()) == ({}, ())


def test_an_unsampled_span_has_no_ids_and_no_headers() -> None:
    with recording(sampler=ALWAYS_OFF) as recorded:
        with sync_span("shops", dict) as span, call_span(lambda: ("ask", never())):
            span.fail(ValueError("no"))
            assert (trace_ids(), trace_headers()) == ({}, ())
        assert recorded.spans == []


def test_collected_by_replaces_the_recorder_until_the_end_of_its_block(recorded: Recording) -> None:
    with recording() as inner, collected_by(inner.provider), sync_span("shops", dict):
        pass
    with sync_span("doors", dict):
        pass
    assert [span.name for span in inner.spans] == ["sync shops"]
    assert [span.name for span in recorded.spans] == ["sync doors"]


OWN_SDK = """
from natsctl.telemetry.tracing import sync_span, trace_ids

with sync_span("shops", dict):
    assert trace_ids() == {}

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

with sync_span("shops", dict):
    assert trace_ids() == {}
trace.set_tracer_provider(TracerProvider())
with sync_span("shops", dict):
    print(trace_ids()["trace_id"])
"""

WITHOUT = """
import sys
import natsctl
from natsctl.telemetry.tracing import sync_span, call_span, watch_span, trace_ids

with sync_span("shops", 0), watch_span("a", 0), call_span(0):
    assert trace_ids() == {}
print([name for name in sys.modules if name.startswith("opentelemetry.sdk")])
"""


def output_of(program: str) -> str:
    """Run the program in a new process, and return its output."""
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    return completed.stdout


def test_the_sdk_of_a_program_records_after_its_setup() -> None:
    assert len(output_of(OWN_SDK).strip()) == 32


def test_without_an_sdk_nothing_is_imported_or_evaluated() -> None:
    assert output_of(WITHOUT) == "[]\n"
