"""Syncs, calls and watches make spans if an OpenTelemetry SDK records them."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from natsctl.errors import NotFoundError, RetryAfter, StoreError
from natsctl.telemetry.tracing import (
    Span,
    call_span,
    sync_span,
    trace_headers,
    trace_ids,
)
from tests.support.clients.span_recorder import Recording, recording


@pytest.fixture
def recorded() -> Iterator[Recording]:
    with recording() as recording_spans:
        yield recording_spans


def describe() -> tuple[str, dict[str, object]]:
    return "ask", {"a": 1, "b": True, "c": 0.5, "d": None}


def never() -> dict[str, object]:
    raise AssertionError("attributes of an unrecorded span were read")


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


def test_an_unsampled_span_has_no_ids_and_no_headers() -> None:
    with recording(sampler=ALWAYS_OFF) as recorded:
        with sync_span("shops", dict) as span, call_span(lambda: ("ask", never())):
            span.fail(ValueError("no"))
            assert (trace_ids(), trace_headers()) == ({}, ())
        assert recorded.spans == []


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
