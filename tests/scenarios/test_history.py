"""The history of syncs survives a restart of controllers and of watchers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from natsctl import (
    Controller,
    ControllerRuntime,
    Primary,
    Retry,
    SimpleWatcher,
    Snapshot,
    give_up_after,
    kv,
    primary,
)
from natsctl.core.environment import within
from natsctl.core.hosted import Hosted
from natsctl.core.quarantine import ClaimedKeys
from natsctl.managed import (
    ExternalClientFns,
    Managed,
    ManagedController,
    ManagedReconciler,
    Observation,
)
from natsctl.testing import MemoryStores
from natsctl.watchers import InformerController
from tests.support.controllers.app_controller import edit
from tests.support.controllers.quarantined_apps import dead, failing_records
from tests.support.eventually import eventually
from tests.support.stores.sample_objects import THINGS, Thing, value


class Things(ManagedController[Thing]):
    """Observes things in an external system, which fails while `fails` is true."""

    kind = THINGS
    name = "things"

    def __init__(self, stores: MemoryStores, calls: list[str]) -> None:
        super().__init__(nats=stores)
        self.fails = True
        self.observed = calls

    def reconciler(self, managed: Primary[Thing]) -> ManagedReconciler[Thing]:
        return ManagedReconciler(managed, connecter=self.connect, recorder=self)

    async def connect(self, _managed: Managed[Thing]) -> ExternalClientFns[Thing]:
        return ExternalClientFns(observe_fn=self.observe)

    async def observe(self, managed: Managed[Thing]) -> Observation:
        self.observed.append(managed.key)
        if self.fails:
            raise ValueError("broken")
        return Observation(exists=True, up_to_date=True)


class Watching(InformerController):
    """Calls a watcher that fails while `fails` is true."""

    def __init__(self, stores: MemoryStores, calls: list[str], **options: Any) -> None:
        options.setdefault("retry_policy", lambda *_: Retry())
        super().__init__(name="things", nats=stores, **options)
        self.fails = True
        self._calls = calls
        self.add_informer(THINGS)
        self.add_watcher(SimpleWatcher(add_func=self.add), THINGS)

    async def add(self, new: Snapshot[Thing]) -> None:
        self._calls.append(new.key)
        if self.fails:
            raise ValueError("broken")


class Syncing(ControllerRuntime):
    """Runs a controller whose handler fails while `fails` is true."""

    def __init__(self, stores: MemoryStores, calls: list[str]) -> None:
        class Handler(Controller):
            name = "things"
            things = primary(THINGS)

            async def sync_handler(_, key: str) -> None:  # noqa: N805 - self is the runtime
                calls.append(key)
                if self.fails:
                    raise ValueError("broken")

        super().__init__(Handler(), nats=stores)
        self.fails = True


Make = Callable[[MemoryStores, list[str]], Things | Watching | Syncing]


@pytest.fixture(params=[Things, Watching, Syncing], ids=["managed", "watchers", "controller"])
def make(request: pytest.FixtureRequest) -> Make:
    make_controller: Make = request.param
    return make_controller


@pytest.fixture
async def stores() -> MemoryStores:
    stores = MemoryStores()
    await stores.store(THINGS).create("a", value())
    return stores


@asynccontextmanager
async def running(
    controller: Things | Watching | ControllerRuntime,
) -> AsyncIterator[Hosted]:
    task = asyncio.create_task(controller.run())
    try:
        await controller.synced.wait()
        yield controller
    finally:
        controller.stop()
        await task


async def test_a_failing_key_continues_its_count_after_a_restart(
    make: Make, stores: MemoryStores
) -> None:
    async with running(make(stores, [])) as first:
        await eventually(lambda: first.explain("a").failures == 12)
    calls: list[str] = []
    async with running(make(stores, calls)) as second:
        await eventually(lambda: second.explain("a").failures == 13)
        queued = second.explain("a").queued
        assert queued is not None
        assert queued.s > 15  # 5 ms doubled twelve times
        assert calls == ["a"]


async def test_a_key_that_kills_processes_is_quarantined(
    make: Make, stores: MemoryStores, tmp_path: Path
) -> None:
    with within(claims=ClaimedKeys(tmp_path)):
        for number in range(3):
            dead(tmp_path, "a", number, loop="things.0")
        calls: list[str] = []
        async with running(make(stores, calls)) as controller:
            await asyncio.sleep(5)
            assert (calls, list(controller.status().quarantined)) == ([], ["a"])
            controller.resync("a")
            await eventually(lambda: calls)


async def test_a_watcher_that_had_given_up_is_retried_after_a_restart(
    stores: MemoryStores,
) -> None:
    calls: list[str] = []
    for _ in range(2):
        calls.clear()
        async with running(Watching(stores, calls, retry_policy=give_up_after(2))) as controller:
            await asyncio.sleep(60)
            assert len(calls) == 3
            assert controller.explain("a").failures == 0


async def test_a_failure_does_not_begin_anew_with_a_restart(
    make: Make, stores: MemoryStores
) -> None:
    async with running(make(stores, [])) as first:
        await eventually(lambda: failing_records(stores) == ["controllers.things.failing.a"])
        before = first.status()
    async with running(make(stores, [])) as second:
        await eventually(lambda: second.status().failing)
        after = second.status()
    assert after.failing_since == before.failing_since
    assert "a" in after.failing_since
    assert (after.unhealthy, after.failing) == (1, before.failing)
    assert after.oldest_failure_s is not None
    assert (after.oldest_unanswered_s or 0.0) >= after.oldest_failure_s
    assert [source.bucket for source in after.sources] == ["things"]


async def test_a_short_failure_leaves_no_record(make: Make, stores: MemoryStores) -> None:
    calls: list[str] = []
    controller = make(stores, calls)
    async with running(controller) as hosted:
        while not calls:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.001)
        controller.fails = False
        await eventually(lambda: len(calls) == 2)
        await asyncio.sleep(30)
        assert failing_records(stores) == []
        assert len(hosted.explain("a").syncs) == len(calls) == 2
        types = [event.type.value for event in stores.events.events]
        assert (types[0], types[-1]) == ("Warning", "Normal")
        assert "after failures" in stores.events.events[-1].message
    async with running(make(stores, [])) as hosted:  # which fails, and counts anew
        await eventually(lambda: hosted.explain("a").failures == 1, every_s=0.001)


async def test_a_failure_whose_record_is_deleted_is_forgotten(stores: MemoryStores) -> None:
    async with running(Syncing(stores, [])):
        await eventually(lambda: failing_records(stores))
    await edit(
        stores.store(THINGS), "a", "metadata", "annotations", to={"natsctl.io/paused": "yes"}
    )
    async with running(Syncing(stores, [])) as hosted:
        await eventually(lambda: hosted.status().failing)
        await stores.store(kv(bytes, bucket="natsctl")).delete(failing_records(stores)[0])
        await eventually(lambda: not hosted.status().failing)


async def test_the_record_of_a_failure_is_deleted_when_a_sync_succeeds(
    make: Make, stores: MemoryStores
) -> None:
    async with running(make(stores, [])):
        await eventually(lambda: failing_records(stores))
    controller = make(stores, [])
    controller.fails = False
    async with running(controller) as hosted:
        await eventually(lambda: not failing_records(stores))
        assert (hosted.status().failing, hosted.status().unhealthy) == ({}, 0)
        assert "after failures" in stores.events.events[-1].message


async def test_failures_that_another_process_ended_are_not_counted(
    make: Make, stores: MemoryStores
) -> None:
    async with running(make(stores, [])):
        await eventually(lambda: failing_records(stores))
    await stores.store(kv(bytes, bucket="natsctl")).delete(failing_records(stores)[0])
    async with running(make(stores, [])) as hosted:
        await eventually(lambda: hosted.explain("a").failures == 1, every_s=0.001)


@pytest.mark.parametrize("since_s", [b"1e300", b"-1e12", b"1e18"])
async def test_a_damaged_record_of_a_failure_is_ignored(
    make: Make, stores: MemoryStores, since_s: bytes
) -> None:
    record = b'{"since_s":%s,"error":"no"}' % since_s
    await stores.store(kv(bytes, bucket="natsctl")).create("controllers.things.failing.a", record)
    async with running(make(stores, [])) as hosted:
        await eventually(lambda: hosted.status().failing_since)
        assert hosted.status().failing_since["a"].year < 2100


async def test_a_key_that_recovered_in_another_process_fails_anew(
    make: Make, stores: MemoryStores
) -> None:
    records = stores.store(kv(bytes, bucket="natsctl"))
    async with running(make(stores, [])) as hosted:
        await eventually(lambda: failing_records(stores))
        before = hosted.status().failing_since["a"]
        hosted.hold_only(())
        await records.delete("controllers.things.failing.a")  # by the process that has it now
        await asyncio.sleep(10)
        hosted.hold_only(("a",))
        hosted.resync("a")
        await eventually(lambda: hosted.status().failing)
        assert hosted.status().failing_since["a"] > before


async def test_a_change_that_waits_for_long_is_overdue(stores: MemoryStores) -> None:
    class Slow(Controller):
        name = "things"
        workers = 1
        sync_timeout_s = 10_000.0
        things = primary(THINGS)

        async def sync_handler(self, key: str) -> None:
            await asyncio.sleep(1000 if key == "a" else 0)

    async with running(ControllerRuntime(Slow(), nats=stores)) as hosted:
        await stores.store(THINGS).create("b", value())
        await asyncio.sleep(250)
        assert (hosted.status().overdue, hosted.measures().health.unhealthy) == (0, 0)
        await asyncio.sleep(100)
        status = hosted.status()
        assert (status.overdue, status.failing, status.unhealthy) == (1, {}, 1)
        assert hosted.measures().health.overdue == {"b"}
        await asyncio.sleep(1000)
        assert (hosted.status().overdue, hosted.status().unhealthy) == (0, 0)
