"""Watches of dependencies: notifications, failures, releases and batches of queries."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from natsctl import Kind, Selector
from natsctl.core.dependencies import Batches, Cause, DependencyWatches, one, those
from natsctl.errors import (
    InvalidObjectError,
    PermissionDeniedError,
    QueryBatchInProgressError,
    QueryBatchNotStartedError,
    StoppedError,
    StoreError,
    StoreTimeoutError,
    WatchStoppingError,
)
from natsctl.model.store import Listed, Store, WatchEvent
from natsctl.slices import ITEMS_MAX
from natsctl.testing import MemoryStore, MemoryStores
from tests.support.stores.sample_objects import THINGS, value

A, B = one(THINGS, "a"), one(THINGS, "b")
ALL = those(THINGS, Selector())


class Stage:
    """DependencyWatches of things whose store can be blocked."""

    def __init__(self) -> None:
        self.stores = MemoryStores()
        self.store = self.stores.store(THINGS)
        self.notified: list[tuple[str, Cause]] = []
        self.unblocked = asyncio.Event()
        self.unblocked.set()
        self.watches = DependencyWatches[str](
            self.open, lambda dependent, cause: self.notified.append((dependent, cause))
        )

    async def open(self, kind: Kind[Any]) -> Store:
        await self.unblocked.wait()
        return await self.stores.open(kind)


class Late(MemoryStore):
    """A store whose listings end when the process has been suspended for a minute."""

    @asynccontextmanager
    async def watch(
        self, shown: Collection[str] | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        async def late(events: AsyncIterator[WatchEvent]) -> AsyncIterator[WatchEvent]:
            async for event in events:
                if isinstance(event, Listed):
                    asyncio.get_running_loop().jump(60.0)  # type: ignore[attr-defined]  # virtual
                yield event

        async with super().watch(shown) as events:
            yield late(events)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with opened(Stage()) as stage:
        yield stage


@asynccontextmanager
async def opened(stage: Stage) -> AsyncIterator[Stage]:
    async with stage.watches.running():
        yield stage


async def test_a_dependent_is_notified_with_the_cause(stage: Stage) -> None:
    await stage.store.create("a", value())
    await stage.watches.depend("x", A)
    await stage.watches.depend("y", A)
    await stage.store.delete("a")
    await asyncio.sleep(1)
    stage.store.fail(PermissionDeniedError("you may not"))
    await asyncio.sleep(1)
    causes = {
        name: [cause for dependent, cause in stage.notified if dependent == name]
        for name in ("x", "y")
    }
    assert causes == {name: [Cause.FOUND, Cause.CHANGED, Cause.LOST] for name in "xy"}


class Suspended(Stage):
    """A stage whose process is suspended during a listing of so many things."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    async def open(self, kind: Kind[Any]) -> Store:
        store = Late(kind)
        for number in range(self.count):
            await store.create(f"k{number}", value())
        return store


async def test_a_listing_that_ends_in_the_turn_of_its_limit_counts() -> None:
    async with opened(Suspended(1)) as stage:
        watch = await stage.watches.depend("x", ALL)
        assert stage.watches.find(ALL) is watch
        assert stage.notified == [("x", Cause.FOUND)]


async def test_a_watch_that_is_not_listed_in_time_notifies_nobody() -> None:
    async with opened(Suspended(3 * ITEMS_MAX)) as stage:
        with pytest.raises(StoreTimeoutError):
            await stage.watches.depend("x", ALL)
        assert stage.notified == []


async def test_a_relist_notifies_dependents_of_changes_only(stage: Stage) -> None:
    await stage.store.create("a", value())
    await stage.watches.depend("x", A)
    stage.store.break_watches()
    await asyncio.sleep(10)
    assert stage.notified == [("x", Cause.FOUND)]


async def test_a_first_failure_is_raised_at_once(stage: Stage) -> None:
    stage.store.fail(StoreError("away"))
    started = asyncio.get_running_loop().time()
    with pytest.raises(StoreError, match="away"):
        await stage.watches.depend("x", A)
    assert asyncio.get_running_loop().time() == started
    assert (len(stage.watches), stage.notified) == (0, [])


async def test_every_dependent_that_waits_for_a_failed_watch_gets_the_error(stage: Stage) -> None:
    stage.unblocked.clear()
    waiting = [asyncio.create_task(stage.watches.depend(dependent, A)) for dependent in "xyz"]
    await asyncio.sleep(1)
    stage.store.fail(StoreError("away"))
    stage.unblocked.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["away"] * 3
    assert len(stage.watches) == 0


async def test_a_dependent_released_while_waiting_gets_an_error_and_others_get_the_watch(
    stage: Stage,
) -> None:
    stage.unblocked.clear()
    waiting = [asyncio.create_task(stage.watches.depend(dependent, A)) for dependent in "xy"]
    await asyncio.sleep(1)
    stage.watches.release("x", A)
    stage.unblocked.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(outcomes[0], WatchStoppingError)
    assert stage.watches.find(A) is outcomes[1]
    assert (stage.watches.dependencies_of("x"), stage.watches.dependencies_of("y")) == (
        frozenset(),
        {A},
    )


async def test_a_watch_that_has_not_listed_is_not_found(stage: Stage) -> None:
    stage.unblocked.clear()
    waiting = asyncio.create_task(stage.watches.depend("x", A))
    await asyncio.sleep(1)
    assert (len(stage.watches), stage.watches.find(A)) == (1, None)
    stage.unblocked.set()
    assert await waiting is stage.watches.find(A)


async def test_a_watch_that_fails_while_it_stops_does_not_affect_a_new_one() -> None:
    class FailingStop(Stage):
        async def open(self, kind: Kind[Any]) -> Store:
            try:
                return await super().open(kind)
            except asyncio.CancelledError:
                raise StoreError("failed during the stop") from None

    async with opened(FailingStop()) as stage:
        stage.unblocked.clear()
        first = asyncio.create_task(stage.watches.depend("x", A))
        await asyncio.sleep(1)
        stage.watches.release("x", A)
        stage.unblocked.set()
        second = await stage.watches.depend("y", A)
        with pytest.raises(WatchStoppingError):
            await first
        assert stage.watches.find(A) is second
        assert stage.watches.dependencies_of("y") == {A}


async def test_depend_is_refused_before_the_start_and_after_the_stop() -> None:
    stage = Stage()
    with pytest.raises(StoppedError):
        await stage.watches.depend("x", A)
    async with opened(stage):
        await stage.watches.depend("x", A)
    assert (len(stage.watches), stage.store.watches) == (0, 0)
    with pytest.raises(StoppedError):
        await stage.watches.depend("x", A)


async def test_releasing_an_unknown_dependency_is_ignored(stage: Stage) -> None:
    stage.watches.release("x", A)
    await stage.watches.depend("x", A)
    stage.watches.release("y", A)
    stage.watches.release("x", B)
    assert stage.watches.dependencies_of("x") == {A}


async def test_a_second_batch_of_a_dependent_is_refused_until_the_first_has_ended(
    stage: Stage,
) -> None:
    batches = Batches(stage.watches)
    batches.start("x")
    with pytest.raises(QueryBatchInProgressError):
        batches.start("x")
    batches.start("y")
    await batches.read("x", A)
    batches.end("x")
    batches.start("x")
    batches.end("x")
    assert stage.watches.dependencies_of("x") == frozenset()


async def test_a_batch_that_was_not_started_cannot_be_read_or_ended(stage: Stage) -> None:
    batches = Batches(stage.watches)
    with pytest.raises(QueryBatchNotStartedError):
        await batches.read("x", A)
    with pytest.raises(QueryBatchNotStartedError):
        batches.end("x")
    with pytest.raises(QueryBatchNotStartedError):
        batches.abandon("x")
    assert len(stage.watches) == 0


async def test_the_dependents_of_a_watch_that_ended_do_not_depend_on_the_watch(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.watches.depend("x", A)
    stage.store.fail(PermissionDeniedError("you may not"))
    await asyncio.sleep(1)
    assert not stage.watches.dependents
    assert stage.watches.dependencies_of("x") == frozenset()
    assert caplog.text.count("stopped watching a dependency dependency='Thing.things a'") == 1


async def test_a_watch_that_never_listed_ends_without_a_log_line(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.store.fail(StoreError("away"))
    with pytest.raises(StoreError):
        await stage.watches.depend("x", A)
    assert caplog.messages == []


async def test_the_dependents_are_those_of_any_watch(stage: Stage) -> None:
    for dependent, dependency in (("x", A), ("x", B), ("y", A)):
        await stage.watches.depend(dependent, dependency)
    assert sorted(stage.watches.dependents) == ["x", "y"]
    stage.watches.release("x", A)
    stage.watches.release("y", A)
    assert tuple(stage.watches.dependents) == ("x",)


async def test_a_cancelled_wait_does_not_end_a_dependency_that_began_before(stage: Stage) -> None:
    stage.unblocked.clear()
    first, second = (asyncio.create_task(stage.watches.depend("x", A)) for _ in range(2))
    await asyncio.sleep(1)
    second.cancel()
    await asyncio.wait((second,))
    stage.unblocked.set()
    assert await first is stage.watches.find(A)


async def test_the_first_error_of_several_new_dependencies_is_raised(stage: Stage) -> None:
    stage.store.fail(PermissionDeniedError("you may not"))
    with pytest.raises(PermissionDeniedError, match="you may not"):
        await stage.watches.depend_only("x", {A, B})
    assert stage.watches.dependencies_of("x") == frozenset()


async def test_a_cancelled_change_of_dependencies_has_no_effect(stage: Stage) -> None:
    await stage.watches.depend("x", A)
    stage.unblocked.clear()
    changing = asyncio.create_task(stage.watches.depend_only("x", {B}))
    await asyncio.sleep(1)
    changing.cancel()
    await asyncio.wait((changing,))
    assert changing.cancelled()
    assert stage.watches.dependencies_of("x") == {A}


class TestTheObjectsOfAWatch:
    async def test_the_objects_of_a_watch_match_its_selector_and_are_sorted_by_key(
        self, stage: Stage
    ) -> None:
        for key, tier in (("c", "gold"), ("a", "gold"), ("b", "tin")):
            await stage.store.create(key, value(labels={"tier": tier}))
        watch = await stage.watches.depend("x", those(THINGS, Selector.parse("tier=gold")))
        assert [stored.key for stored in watch.objects()] == ["a", "c"]
        assert await watch.read() == watch.objects()

    async def test_a_watch_has_objects_only_if_the_selector_matches_one(self, stage: Stage) -> None:
        await stage.store.create("b", value(labels={"tier": "tin"}))
        watch = await stage.watches.depend("x", those(THINGS, Selector.parse("tier=gold")))
        assert not watch.has_objects()
        assert stage.notified == []

    async def test_the_objects_of_a_watch_include_the_last_valid_state_of_an_invalid_object(
        self, stage: Stage
    ) -> None:
        created = await stage.store.create("a", value("valid"))
        watch = await stage.watches.depend("x", A)
        await stage.store.update("a", b"garbage", revision=created.revision)
        await asyncio.sleep(1)
        assert [stored.value for stored in watch.objects()] == [value("valid")]

    async def test_a_watch_of_one_object_that_never_was_valid_raises_its_error(
        self, stage: Stage
    ) -> None:
        await stage.store.create("a", b"garbage")
        watch = await stage.watches.depend("x", A)
        with pytest.raises(InvalidObjectError):
            watch.objects()
        assert watch.has_objects()

    async def test_a_watch_of_several_objects_leaves_out_one_that_never_was_valid(
        self, stage: Stage
    ) -> None:
        await stage.store.create("a", b"garbage")
        await stage.store.create("b", value())
        watch = await stage.watches.depend("x", ALL)
        assert [stored.key for stored in watch.objects()] == ["b"]
