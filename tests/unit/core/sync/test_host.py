"""A host calls the hooks once, runs sync loops and stops them within a time limit."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from natsctl.core.host import Host, collect_imports
from natsctl.core.informer import Informer
from natsctl.core.loop import SyncLoop
from natsctl.core.sync import Calls
from natsctl.core.workqueue import WorkQueue
from natsctl.errors import HandlerError, StoreError
from natsctl.slices import ITEMS_MAX
from natsctl.testing import MemoryStore
from natsctl.time_limit import IGNORED_S
from tests.support.stores.sample_objects import THINGS, Thing, value


class Hosted:
    """Two sync loops in one host; records the calls of hooks and syncs in order."""

    def __init__(self, *, sync_s: float = 0.0, fails: bool = False) -> None:
        self.calls: list[str] = []
        self.queues = {name: WorkQueue[str]() for name in ("first", "second")}
        self.host = Host(
            "things",
            lambda: self.queues,
            start=self.start,
            clean=self.clean,
            stop_timeout_s=10.0,
        )
        self._sync_s = sync_s
        self._fails = fails

    async def start(self) -> None:
        self.calls.append("start")
        if self._fails:
            raise ZeroDivisionError

    async def clean(self) -> None:
        self.calls.append("clean")

    async def sync(self, key: str) -> None:
        self.calls.append(key)
        await asyncio.sleep(self._sync_s)
        self.calls.append(f"{key} ended")

    async def upkeep(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.calls.append("upkeep cancelled")

    async def loops_ended(self) -> None:
        self.calls.append("loops ended")

    async def run(self) -> None:
        loops = [SyncLoop(self.sync, queue=queue) for queue in self.queues.values()]
        await self.host.run(*(loop.run(self.host.begin) for loop in loops))

    async def run_with_upkeep(self) -> None:
        loop = SyncLoop(self.sync, queue=self.queues["first"])
        await self.host.run(
            loop.run(self.host.begin), upkeep=(self.upkeep(),), loops_ended=self.loops_ended
        )


@asynccontextmanager
async def running(hosted: Hosted) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(hosted.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_the_hooks_are_called_once_around_the_syncs_of_all_loops() -> None:
    hosted = Hosted()
    for name, queue in hosted.queues.items():
        queue.offer(name)
    async with running(hosted) as task:
        await asyncio.sleep(1)
        hosted.host.stop()
        await task
    first, *syncs, last = hosted.calls
    assert (first, last) == ("start", "clean")
    assert sorted(syncs) == ["first", "first ended", "second", "second ended"]


async def test_a_sync_may_end_within_the_time_limit_of_a_stop() -> None:
    hosted = Hosted(sync_s=9.0)
    hosted.queues["first"].offer("a")
    async with running(hosted) as task:
        await asyncio.sleep(1)
        hosted.host.stop()
        await task
    assert hosted.calls == ["start", "a", "a ended", "clean"]


async def test_a_sync_that_exceeds_the_stop_timeout_is_cancelled_before_clean() -> None:
    hosted = Hosted(sync_s=60.0)
    hosted.queues["first"].offer("a")
    async with running(hosted) as task:
        await asyncio.sleep(1)
        hosted.host.stop()
        await task
    assert hosted.calls == ["start", "a", "clean"]


async def test_a_failed_start_ends_the_host_after_clean() -> None:
    hosted = Hosted(fails=True)
    hosted.queues["first"].offer("a")
    with pytest.raises(HandlerError, match=r"things: start\(\) failed: ZeroDivisionError"):
        await hosted.run()
    assert hosted.calls == ["start", "clean"]
    assert not hosted.host.synced.is_set()


async def test_the_end_of_one_loop_ends_the_others() -> None:
    hosted = Hosted()
    async with running(hosted) as task:
        await hosted.host.synced.wait()
        hosted.queues["second"].shut_down(drain=False)
        await task
    assert hosted.calls == ["start", "clean"]
    assert hosted.host.stopping


async def test_a_stop_leaves_the_keys_that_no_sync_has_begun() -> None:
    hosted = Hosted(sync_s=5.0)
    hosted.queues["first"].offer("a")
    hosted.queues["first"].offer("b")
    async with running(hosted) as task:
        await asyncio.sleep(1)
        hosted.host.stop()
        await task
    assert hosted.calls == ["start", "a", "a ended", "clean"]


async def test_upkeep_lasts_until_the_loops_have_ended() -> None:
    hosted = Hosted(sync_s=5.0)
    hosted.queues["first"].offer("a")
    task = asyncio.create_task(hosted.run_with_upkeep())
    await asyncio.sleep(1)
    hosted.host.stop()
    await asyncio.wait_for(task, 60)
    ends = ["a ended", "loops ended", "upkeep cancelled", "clean"]
    assert hosted.calls == ["start", "a", *ends]


async def test_a_sync_that_ignores_its_cancellation_at_the_stop_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ignoring(_key: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(2 * IGNORED_S)

    hosted = Hosted()
    calls = Calls("things", "sync_handler", limit_s=1000.0, setting="sync_timeout_s")
    loop = SyncLoop(lambda key: calls.call(key, ignoring), queue=hosted.queues["first"])
    hosted.queues["first"].offer("a")
    task = asyncio.create_task(hosted.host.run(loop.run(hosted.host.begin)))
    await asyncio.sleep(1)
    hosted.host.stop()
    await task
    reports = [log for log in caplog.messages if "did not end after its cancellation" in log]
    assert len(reports) == 1
    assert "key=a" in reports[0]


async def test_the_failure_of_a_host_is_that_of_its_first_broken_watch() -> None:
    hosted, store, broken = Hosted(), MemoryStore(THINGS), MemoryStore(THINGS)
    broken.fail(StoreError("away"))
    informers = {name: Informer(store, THINGS) for name, store in (("a", store), ("b", broken))}
    assert hosted.host.failure is None
    async with hosted.host.watching(informers, ()):
        await asyncio.sleep(1)
        assert str(hosted.host.failure) == "away"
        broken.fail(None)
        await asyncio.sleep(60)
        assert hosted.host.failure is None


async def test_a_host_is_idle_only_after_the_syncs_of_all_queues() -> None:
    hosted = Hosted(sync_s=5.0)
    assert not hosted.host.idle
    hosted.queues["second"].offer("a")
    async with running(hosted):
        await asyncio.sleep(1)
        assert not hosted.host.idle
        await asyncio.sleep(5)
        assert hosted.host.idle


async def test_a_host_is_not_idle_while_an_informer_notifies() -> None:
    hosted, store = Hosted(), MemoryStore(THINGS)
    for number in range(2 * ITEMS_MAX):
        await store.create(f"k{number}", value())
    informer: Informer[Thing] = Informer(store, THINGS)
    async with hosted.host.watching({"things": informer}, (informer,)), running(hosted):
        await asyncio.sleep(1)
        assert hosted.host.idle
        subscribing = asyncio.create_task(informer.add(lambda _: None))
        await asyncio.sleep(0)
        assert not hosted.host.idle
        await subscribing
        assert hosted.host.idle


async def test_start_waits_for_every_cache_and_a_stop_before_it_cancels_at_once() -> None:
    hosted, store = Hosted(), MemoryStore(THINGS)
    await store.create("a", value())
    informer: Informer[Thing] = Informer(store, THINGS)
    hosted.host.informers = {"things": informer}
    async with running(hosted) as task:
        await asyncio.sleep(60)
        assert hosted.calls == []
        hosted.host.stop()
        stopped_at = asyncio.get_running_loop().time()
        await task
        assert asyncio.get_running_loop().time() == stopped_at
    assert hosted.calls == ["clean"]


async def test_watching_syncs_the_caches_while_the_context_lasts() -> None:
    hosted, store = Hosted(), MemoryStore(THINGS)
    await store.create("a", value())
    informer: Informer[Thing] = Informer(store, THINGS)
    async with hosted.host.watching({"things": informer}, (informer,)), running(hosted):
        await hosted.host.synced.wait()
        assert list(informer.cache.keys()) == ["a"]
        assert hosted.host.idle
    await store.create("b", value())
    await asyncio.sleep(1)
    assert list(informer.cache.keys()) == ["a"]


async def test_the_first_full_garbage_collection_precedes_the_first_sync() -> None:
    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            hosted.calls.append("collected")

    hosted = Hosted()
    hosted.queues["first"].offer("first")
    collect_imports.cache_clear()
    gc.callbacks.append(note)
    try:
        async with running(hosted) as task:
            await asyncio.sleep(1)
            hosted.host.stop()
            await task
    finally:
        gc.callbacks.remove(note)
    assert hosted.calls.index("collected") < hosted.calls.index("first")
