import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from natsctl.core.dependencies.batches import Batches
from natsctl.core.dependencies.dependency import one
from natsctl.core.dependencies.watches import Cause, DependencyWatches
from natsctl.errors import (
    PermissionDeniedError,
    QueryBatchInProgressError,
    QueryBatchNotStartedError,
    StoppedError,
    StoreError,
    WatchStoppingError,
)
from natsctl.model.kinds import Kind
from natsctl.model.store import Store
from natsctl.testing.memory import MemoryStores
from tests.support.stores.sample_objects import THINGS, value

A, B = one(THINGS, "a"), one(THINGS, "b")


class Stage:
    """DependencyWatches of things, whose store can be held up."""

    def __init__(self) -> None:
        self.stores = MemoryStores()
        self.store = self.stores.store(THINGS)
        self.woken: list[tuple[str, Cause]] = []
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.watches = DependencyWatches[str](
            self.open, lambda who, cause: self.woken.append((who, cause))
        )

    async def open(self, kind: Kind[Any]) -> Store:
        await self.flowing.wait()
        return await self.stores.open(kind)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with entered(Stage()) as stage:
        yield stage


@asynccontextmanager
async def entered(stage: Stage) -> AsyncIterator[Stage]:
    async with stage.watches.running():
        yield stage


async def test_who_is_woken_learns_why(stage: Stage) -> None:
    await stage.store.create("a", value())
    await stage.watches.depend("x", A)
    await stage.watches.depend("y", A)
    await stage.store.delete("a")
    await asyncio.sleep(1)
    stage.store.fail(PermissionDeniedError("you may not"))
    await asyncio.sleep(1)
    causes = {who: [cause for of, cause in stage.woken if of == who] for who in ("x", "y")}
    assert causes == {who: [Cause.FOUND, Cause.CHANGED, Cause.LOST] for who in "xy"}


async def test_a_failure_at_first_is_told_at_once_and_is_no_reason_to_wait(stage: Stage) -> None:
    stage.store.fail(StoreError("away"))
    started = asyncio.get_running_loop().time()
    with pytest.raises(StoreError, match="away"):
        await stage.watches.depend("x", A)
    assert asyncio.get_running_loop().time() == started
    assert (len(stage.watches), stage.woken) == (0, [])


async def test_everybody_who_waits_for_a_watch_that_fails_is_told(stage: Stage) -> None:
    stage.flowing.clear()
    waiting = [asyncio.create_task(stage.watches.depend(who, A)) for who in "xyz"]
    await asyncio.sleep(1)
    stage.store.fail(StoreError("away"))
    stage.flowing.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["away"] * 3
    assert len(stage.watches) == 0


async def test_who_is_released_while_waiting_is_told_and_the_others_get_the_watch(
    stage: Stage,
) -> None:
    stage.flowing.clear()
    waiting = [asyncio.create_task(stage.watches.depend(who, A)) for who in "xy"]
    await asyncio.sleep(1)
    stage.watches.release("x", A)
    stage.flowing.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(outcomes[0], WatchStoppingError)
    assert stage.watches.find(A) is outcomes[1]
    assert (stage.watches.of("x"), stage.watches.of("y")) == (frozenset(), {A})


async def test_a_watch_that_has_not_listed_is_not_found(stage: Stage) -> None:
    stage.flowing.clear()
    waiting = asyncio.create_task(stage.watches.depend("x", A))
    await asyncio.sleep(1)
    assert (len(stage.watches), stage.watches.find(A)) == (1, None)
    stage.flowing.set()
    assert await waiting is stage.watches.find(A)


async def test_a_watch_that_fails_while_it_is_stopped_harms_no_new_one() -> None:
    class Stubborn(Stage):
        async def open(self, kind: Kind[Any]) -> Store:
            try:
                return await super().open(kind)
            except asyncio.CancelledError:
                raise StoreError("not even stopped") from None

    async with entered(Stubborn()) as stage:
        stage.flowing.clear()
        first = asyncio.create_task(stage.watches.depend("x", A))
        await asyncio.sleep(1)
        stage.watches.release("x", A)
        stage.flowing.set()
        second = await stage.watches.depend("y", A)
        with pytest.raises(WatchStoppingError):
            await first
        assert stage.watches.find(A) is second
        assert stage.watches.of("y") == {A}


async def test_nothing_is_watched_before_and_after() -> None:
    stage = Stage()
    with pytest.raises(StoppedError):
        await stage.watches.depend("x", A)
    async with entered(stage):
        await stage.watches.depend("x", A)
    assert (len(stage.watches), stage.store.watches) == (0, 0)
    with pytest.raises(StoppedError):
        await stage.watches.depend("x", A)


async def test_releasing_what_nobody_depends_on_is_fine(stage: Stage) -> None:
    stage.watches.release("x", A)
    await stage.watches.depend("x", A)
    stage.watches.release("y", A)
    stage.watches.release("x", B)
    assert stage.watches.of("x") == {A}


async def test_a_second_batch_of_the_same_dependent_waits_for_the_end_of_the_first(
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
    assert stage.watches.of("x") == frozenset()


async def test_a_batch_that_was_not_started_cannot_be_read_in_or_ended(stage: Stage) -> None:
    batches = Batches(stage.watches)
    with pytest.raises(QueryBatchNotStartedError):
        await batches.read("x", A)
    with pytest.raises(QueryBatchNotStartedError):
        batches.end("x")
    with pytest.raises(QueryBatchNotStartedError):
        batches.abandon("x")
    assert len(stage.watches) == 0
