"""Spans say what was done because of what, where somebody records them."""

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
    with recording() as found:
        yield found


def describe() -> tuple[str, dict[str, object]]:
    return "ask", {"a": 1, "b": True, "c": 0.5, "d": None}


def never() -> dict[str, object]:
    raise AssertionError("nobody records")


def test_what_ended_before_it_is_cut_short_is_left_as_it_was(
    recorded: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    with suppress(asyncio.CancelledError), watch_span("Shop.shops", dict) as span:
        span.end()
        raise asyncio.CancelledError
    (ended,) = recorded.spans
    assert ended.attributes == {"natsctl.kind": "Shop.shops"}
    assert caplog.text == ""


def test_a_call_is_part_of_the_sync_that_makes_it(recorded: Recording) -> None:
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


def test_a_call_outside_of_any_span_is_nobodys(recorded: Recording) -> None:
    with call_span(lambda: ("ask", never())):
        assert trace_ids() == {}
        assert trace_headers() == ()
    assert recorded.spans == []


async def test_tasks_have_spans_of_their_own_and_what_they_make_is_part_of_them(
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
    for each in recorded.named("sync shops"):
        assert [span.name for span in recorded.below(each)] == ["ask", "ask"]


async def test_what_outlives_a_span_is_no_part_of_it(recorded: Recording) -> None:
    async def later() -> None:
        await asyncio.sleep(1)
        assert trace_ids() == {}
        with call_span(describe):
            pass

    with sync_span("shops", dict):
        task = asyncio.create_task(later())
    await task
    assert [span.name for span in recorded.spans] == ["sync shops"]


def test_a_watch_is_no_part_of_what_caused_it(recorded: Recording) -> None:
    with sync_span("shops", dict), watch_span("Route.routes", lambda: {"a": 1}) as watch:
        with call_span(describe):
            pass
        watch.end()
        with call_span(describe):
            pass
    first, found, second, sync = recorded.spans
    assert (found.name, found.parent) == ("watch Route.routes", None)
    assert found.attributes == {"natsctl.kind": "Route.routes", "a": 1}
    assert first.parent == found.context
    assert second.parent == sync.context


@pytest.mark.parametrize("error", [ValueError("at nats://ann:hush@hub"), StoreError("away")])
def test_a_failure_is_told_without_secrets(error: Exception, recorded: Recording) -> None:
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
        assert traced is None  # it was foreseen


def asking() -> Span:
    """A call for which it is fine to find nothing."""
    return call_span(describe, expected=(NotFoundError,))


def test_what_is_fine_is_no_failure(recorded: Recording) -> None:
    with pytest.raises(RetryAfter), sync_span("doors", dict):
        raise RetryAfter(5)
    with pytest.raises(NotFoundError), sync_span("shops", dict), asking():
        raise NotFoundError("no")
    doors, call, shops = recorded.spans
    assert [span.status.status_code for span in (call, doors)] == [StatusCode.UNSET] * 2
    assert [span.events for span in (call, doors)] == [(), ()]
    assert shops.status.status_code is StatusCode.ERROR  # to a sync it is one


async def test_what_is_cancelled_has_not_failed(recorded: Recording) -> None:
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


def test_who_is_under_way_can_be_told_to_others(recorded: Recording) -> None:
    with sync_span("shops", dict):
        ids, headers = trace_ids(), trace_headers()
    (span,) = recorded.spans
    trace, span_id = f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"
    assert ids == {"trace_id": trace, "span_id": span_id}
    ((name, value),) = headers
    assert name == "traceparent"
    assert value.startswith(f"00-{trace}-{span_id}-0")
    assert (trace_ids(), trace_headers()) == ({}, ())


def test_of_what_is_not_sampled_nothing_is_told() -> None:
    with recording(sampler=ALWAYS_OFF) as recorded:
        with sync_span("shops", dict) as span, call_span(lambda: ("ask", never())):
            span.fail(ValueError("no"))
            assert (trace_ids(), trace_headers()) == ({}, ())
        assert recorded.spans == []


def test_one_recorder_in_the_place_of_another_is_for_a_while_only(recorded: Recording) -> None:
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


def said_by(program: str) -> str:
    """What a program says in a process of its own, where nothing is set up yet."""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")
    return found.stdout


def test_a_programs_own_sdk_is_found_once_it_is_set_up() -> None:
    assert len(said_by(OWN_SDK).strip()) == 32


def test_without_an_sdk_nothing_is_imported_and_nothing_asked() -> None:
    assert said_by(WITHOUT) == "[]\n"
