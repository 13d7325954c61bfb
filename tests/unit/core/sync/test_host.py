"""A host calls the hooks once, runs sync loops and stops them within a time limit."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from natsctl.core.cache.informer import Informer
from natsctl.core.queue.workqueue import Workqueue
from natsctl.core.sync.host import Host, collect_imports
from natsctl.core.sync.loop import SyncLoop
from natsctl.errors import HandlerError
from natsctl.testing.memory import MemoryStore
from tests.support.stores.sample_objects import THINGS, Thing, value


class Hosted:
    """Two sync loops in one host; records the calls of hooks and syncs in order."""

    def __init__(self, *, sync_s: float = 0.0, fails: bool = False) -> None:
        self.calls: list[str] = []
        self.queues = {name: Workqueue[str]() for name in ("first", "second")}
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

    async def run(self) -> None:
        loops = [SyncLoop(self.sync, queue=queue) for queue in self.queues.values()]
        await self.host.run(*(loop.run(self.host.begin) for loop in loops))


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
        queue.add(name)
    async with running(hosted) as task:
        await asyncio.sleep(1)
        hosted.host.stop()
        await task
    first, *syncs, last = hosted.calls
    assert (first, last) == ("start", "clean")
    assert sorted(syncs) == ["first", "first ended", "second", "second ended"]


async def test_a_sync_may_end_within_the_time_limit_of_a_stop() -> None:
    hosted = Hosted(sync_s=9.0)
    hosted.queues["first"].add("a")
    async with running(hosted) as task:
        await asyncio.sleep(1)
        hosted.host.stop()
        await task
    assert hosted.calls == ["start", "a", "a ended", "clean"]


async def test_a_sync_that_exceeds_the_stop_timeout_is_cancelled_before_clean() -> None:
    hosted = Hosted(sync_s=60.0)
    hosted.queues["first"].add("a")
    async with running(hosted) as task:
        await asyncio.sleep(1)
        hosted.host.stop()
        await task
    assert hosted.calls == ["start", "a", "clean"]


async def test_a_failed_start_ends_the_host_after_clean() -> None:
    hosted = Hosted(fails=True)
    hosted.queues["first"].add("a")
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
    hosted.queues["first"].add("first")
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
