"""Failed, delayed and lost events of a resource stream."""

import asyncio
import linecache
import logging

import pytest

from natsctl import (
    PermanentError,
    PermissionDeniedError,
    RetryAfter,
    TokenBucket,
    always_retry,
    give_up_after,
    retry_up_to,
)
from natsctl.errors import EventNotDoneError
from natsctl.resource import ErrorAction, EventStream, PerKey
from tests.support.controllers.resource_subscribers import (
    clock,
    content_of,
    exact_backoff,
    handled,
    is_silent,
    resource_harness,
    synced,
)
from tests.support.stores.sample_objects import Thing

FAILURE = OSError("no room")


async def fail(events: EventStream[Thing], times: int = 1) -> list[str]:
    """Fail the next events, and return their types and keys."""
    handled_events = []
    for _ in range(times):
        event = await anext(events)
        handled_events.append(f"{event.kind} {event.key}".strip())
        event.done(FAILURE)
    return handled_events


async def test_a_failed_event_is_redelivered_with_backoff_until_it_succeeds() -> None:
    async with (
        resource_harness("a") as harness,
        harness.resource.events(rate_limiter=exact_backoff()) as events,
    ):
        await fail(events)
        await handled(events, 1)
        times = []
        for _ in range(4):
            await fail(events)
            times.append(clock())
        assert times == [1, 3, 7, 15]
        assert await handled(events, 1) == [("upsert", "a", "hi")]
        assert await is_silent(events)


async def test_a_token_bucket_limits_all_retries_of_its_stream() -> None:
    bucket = TokenBucket(rate_per_s=1 / 60, burst=1)
    async with (
        resource_harness("a", "b", "c") as harness,
        harness.resource.events(rate_limiter=bucket) as events,
    ):
        await fail(events, 3)
        await handled(events, 2)
        assert clock() < 1
        for minute in (1, 2):
            await handled(events, 1)
            assert clock() == pytest.approx(60 * minute)


async def test_a_failed_upsert_of_a_deleted_object_becomes_a_delete() -> None:
    async with (
        resource_harness("a") as harness,
        harness.resource.events(rate_limiter=exact_backoff()) as events,
    ):
        await fail(events)
        await handled(events, 1)
        await harness.delete("a")
        assert await handled(events, 1) == [("delete", "a", "hi")]
        assert await is_silent(events)


async def test_a_key_that_fails_too_often_ends_its_stream_and_no_other() -> None:
    async with (
        resource_harness("a", "b") as harness,
        harness.resource.events(
            error_handler=retry_up_to(2), rate_limiter=exact_backoff()
        ) as events,
        harness.resource.events() as other_events,
    ):
        assert await fail(events) == ["upsert a"]
        held = await anext(events)
        await handled(events, 1)
        assert await fail(events, 2) == ["upsert a"] * 2
        assert [event async for event in events] == []
        held.done()
        assert len(await synced(other_events)) == 3
        await harness.put("a", "changed")
        assert await handled(other_events, 1) == [("upsert", "a", "changed")]
        assert [event async for event in events] == []


async def test_the_error_handler_gets_the_error_and_the_failures_of_the_key() -> None:
    handled_errors: list[tuple[str, int]] = []

    def handler(error: Exception, failures: int) -> ErrorAction:
        handled_errors.append((str(error), failures))
        return always_retry(error, failures)

    async with (
        resource_harness("a") as harness,
        harness.resource.events(error_handler=handler) as events,
    ):
        for text in ("one", "two"):
            event = await anext(events)
            if event.key:
                event.done(OSError(text))
            else:
                event.done()
                (await anext(events)).done(OSError(text))
        assert handled_errors == [("one", 1), ("two", 2)]


async def test_retry_after_delays_and_permanent_error_drops_the_event() -> None:
    async with resource_harness("a") as harness, harness.resource.events() as events:
        (await anext(events)).done(RetryAfter(600))
        await handled(events, 1)
        event = await anext(events)
        assert clock() == pytest.approx(600, abs=1)
        event.done(PermanentError("no"))
        assert await is_silent(events)
        await harness.delete("a")
        held = await anext(events)
        held.done(RetryAfter(600))
        assert await handled(events, 1) == [("delete", "a", "hi")]


async def test_a_block_that_raises_marks_its_event_failed_and_does_not_propagate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        resource_harness("a") as harness,
        harness.resource.events(rate_limiter=exact_backoff()) as events,
    ):
        async with await anext(events):
            raise FAILURE
        async with await anext(events) as event:
            assert content_of(event) == ("sync", "", "")
        assert await handled(events, 1) == [("upsert", "a", "hi")]
        assert await is_silent(events)
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (
        record.getMessage()
        == "event failed kind=Thing.things type=upsert key=a error='OSError: no room'"
    )


async def test_failed_dropped_and_stream_ending_events_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    per_key = PerKey(lambda key: give_up_after(0) if key else retry_up_to(0))
    async with (
        resource_harness("a") as harness,
        harness.resource.events(error_handler=per_key) as events,
    ):
        (await anext(events)).done(PermanentError("never"))
        await harness.put("a", "new")
        await asyncio.sleep(1)
        (await anext(events)).done(TimeoutError("too late"))
        (await anext(events)).done(PermissionDeniedError("no"))
        assert [event async for event in events] == []
    assert [
        record.getMessage() for record in caplog.records if record.levelno == logging.ERROR
    ] == [
        "event failed kind=Thing.things type=upsert key=a error='PermanentError: never'",
        "event failed kind=Thing.things type=upsert key=a error='TimeoutError: too late'",
        "dropping an event until its object changes kind=Thing.things type=upsert key=a",
        "event failed kind=Thing.things type=sync error='PermissionDeniedError: no'",
        "ending the stream after a failed event kind=Thing.things type=sync",
    ]


async def hang_and_be_cancelled(events: EventStream[Thing]) -> None:
    """Be cancelled within the block of an event."""

    async def hang() -> None:
        async for event in events:
            async with event:
                await asyncio.sleep(1000 if event.key else 0)

    hanging = asyncio.create_task(hang())
    await asyncio.sleep(10)
    hanging.cancel()
    await asyncio.wait({hanging})
    assert hanging.cancelled()


async def test_an_event_of_a_cancelled_handler_is_delivered_again_at_once() -> None:
    async with (
        resource_harness("a") as harness,
        harness.resource.events(rate_limiter=exact_backoff()) as events,
    ):
        await hang_and_be_cancelled(events)
        assert await synced(events) == [("upsert", "a", "hi"), ("sync", "", "")]
        await harness.delete("a")
        await hang_and_be_cancelled(events)
        assert await handled(events, 1) == [("delete", "a", "hi")]
        assert clock() == 20
        assert await is_silent(events)


class TestLosing:
    async def test_a_lost_event_fails_its_stream_and_the_error_names_the_line(self) -> None:
        async def forgetful() -> None:
            async with harness.resource.events() as events:  # the error names this line
                async for event in events:
                    assert event.kind

        async with resource_harness("a", "b") as harness:
            with pytest.raises(EventNotDoneError, match="the upsert of a was dropped") as caught:
                await forgetful()
        file, _, line = str(caught.value).rpartition(" ")[2].partition(":")
        assert "the error names this line" in linecache.getline(file, int(line))

    async def test_a_lost_event_fails_a_pending_read(self) -> None:
        async def waiting() -> None:
            async with harness.resource.events() as events:
                lost = [await anext(events)]
                await handled(events, 1)
                asyncio.get_running_loop().call_later(60, lost.clear)
                await anext(events)

        async with resource_harness("a") as harness:
            with pytest.raises(EventNotDoneError):
                await waiting()
            assert clock() == 60

    async def test_an_event_that_outlives_its_stream_needs_no_done(self) -> None:
        handled_errors: list[Exception] = []

        def handler(error: Exception, failures: int) -> ErrorAction:
            handled_errors.append(error)
            return always_retry(error, failures)

        async with resource_harness("a") as harness:
            async with harness.resource.events(error_handler=handler) as events:
                late, dropped = await anext(events), await anext(events)
            late.done(FAILURE)
            assert handled_errors == []
            del dropped
            assert [event async for event in events] == []
            async with harness.resource.events() as events:
                assert len(await synced(events)) == 2


async def test_a_dropped_key_is_delivered_again_if_it_changes() -> None:
    async with (
        resource_harness("a", "b") as harness,
        harness.resource.events(
            error_handler=give_up_after(2), rate_limiter=exact_backoff()
        ) as events,
    ):
        assert await fail(events) == ["upsert a"]
        assert len(await synced(events)) == 2
        assert await fail(events, 2) == ["upsert a"] * 2
        assert await is_silent(events)
        await harness.put("a", "changed")
        assert await handled(events, 1) == [("upsert", "a", "changed")]


async def test_a_dropped_delete_is_not_delivered_again_when_its_key_is_new() -> None:
    async with (
        resource_harness("a") as harness,
        harness.resource.events(error_handler=give_up_after(0)) as events,
    ):
        await harness.put("a", "first", uid="1")
        await synced(events)
        await harness.delete("a")
        assert await fail(events) == ["delete a"]
        await harness.put("a", "second", uid="2")
        assert await handled(events, 1) == [("upsert", "a", "second")]


async def test_a_failed_delete_of_a_recreated_object_without_uid_becomes_an_upsert() -> None:
    async with (
        resource_harness("a") as harness,
        harness.resource.events(rate_limiter=exact_backoff()) as events,
    ):
        await synced(events)
        await harness.delete("a")
        assert await fail(events, 2) == ["delete a"] * 2
        await harness.put("a", "back")
        assert await handled(events, 1) == [("upsert", "a", "back")]
        await harness.delete("a")
        assert await handled(events, 1) == [("delete", "a", "back")]


async def test_the_error_handler_can_depend_on_the_key() -> None:
    per_key = PerKey(lambda key: give_up_after(0) if key == "a" else always_retry)
    async with (
        resource_harness("a", "b") as harness,
        harness.resource.events(error_handler=per_key, rate_limiter=exact_backoff()) as events,
    ):
        assert await fail(events, 2) == ["upsert a", "upsert b"]
        assert await handled(events, 2) == [("sync", "", ""), ("upsert", "b", "hi")]
        assert await is_silent(events)
