"""The sync loop takes keys from the queue, calls the handler and settles the result."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from natsctl import Drop, Retry, Stop
from natsctl.core.informer import Informer
from natsctl.core.loop import SyncLoop
from natsctl.core.pauses import PAUSES, Pausing, controller_record
from natsctl.core.planning.record import PlanRecord, current_plan
from natsctl.core.quarantine import DEATHS_MAX, ClaimedKeys, Deaths, current_claims
from natsctl.core.workqueue import Priority
from natsctl.model.pause import Pause
from natsctl.model.store import Change
from natsctl.slices import TURN_S
from natsctl.telemetry.logger import log_context
from natsctl.testing import MemoryStore, MemoryStores, VirtualTimeLoop
from tests.support.eventually import eventually
from tests.support.places import Ready, place, take_nowait
from tests.support.stores.sample_objects import THINGS, Thing, informed, value


async def at_once() -> None:
    """Return at once: nothing has to be prepared."""


class Handler:
    """A sync handler that records its keys and then calls the given function."""

    def __init__(self, do: Callable[[str], Awaitable[float | None]] | None = None) -> None:
        self.calls: list[str] = []
        self.running: set[str] = set()
        self.concurrent_max = 0
        self._do = do

    async def __call__(self, key: str) -> float | None:
        assert key not in self.running
        self.calls.append(key)
        self.running.add(key)
        self.concurrent_max = max(self.concurrent_max, len(self.running))
        try:
            return None if self._do is None else await self._do(key)
        finally:
            self.running.discard(key)


@asynccontextmanager
async def running(
    loop: SyncLoop,  # type: ignore[type-arg]
    ready: Callable[[], Awaitable[None]] = at_once,
    *,
    workers: int = 1,
) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(loop.run(ready, workers=workers))
    await asyncio.sleep(0)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def idle(loop: SyncLoop) -> None:  # type: ignore[type-arg]
    await eventually(lambda: loop.queue.idle, within_s=3600)


class TestSyncs:
    async def test_every_key_is_handled_once(self) -> None:
        handler = Handler()
        loop = SyncLoop(handler)
        async with running(loop):
            for key in ("a", "b", "a"):
                loop.queue.offer(key)
            await idle(loop)
        assert handler.calls == ["a", "b"]

    async def test_one_key_is_handled_at_a_time_by_default(self) -> None:
        async def slowly(_key: str) -> None:
            await asyncio.sleep(1)

        handler = Handler(slowly)
        loop = SyncLoop(handler)
        async with running(loop):
            for key in ("a", "b"):
                loop.queue.offer(key)
            await idle(loop)
        assert handler.concurrent_max == 1

    async def test_handlers_that_never_wait_yield_to_other_tasks(self) -> None:
        clock = asyncio.get_running_loop()
        assert isinstance(clock, VirtualTimeLoop)
        turns: list[int] = []

        async def busily(_key: str) -> None:
            clock.jump(TURN_S / 4)

        async def other() -> None:
            while len(handler.calls) < 100:
                turns.append(len(handler.calls))
                await asyncio.sleep(0)

        handler = Handler(busily)
        loop = SyncLoop(handler)
        for number in range(100):
            loop.queue.offer(f"k{number}")
        async with running(loop):
            await other()
        assert len(set(turns)) >= 20

    async def test_each_worker_handles_another_key(self) -> None:
        async def slowly(_key: str) -> None:
            await asyncio.sleep(1)

        handler = Handler(slowly)
        loop = SyncLoop(handler)
        async with running(loop, workers=3):
            for _ in range(5):
                for number in range(10):
                    loop.queue.offer(f"k{number}")
                await asyncio.sleep(0.5)
            await idle(loop)
        assert handler.concurrent_max == 3

    async def test_a_key_is_requeued_after_the_delay_that_its_handler_returns(self) -> None:
        async def again(_key: str) -> float:
            return 60

        handler = Handler(again)
        loop = SyncLoop(handler)
        async with running(loop):
            loop.queue.offer("a")
            await asyncio.sleep(150)
        assert handler.calls == ["a", "a", "a"]

    async def test_a_failing_key_is_retried_and_does_not_affect_others(self) -> None:
        async def fail(key: str) -> None:
            if key == "bad" and handler.calls.count("bad") < 4:
                raise OSError

        handler = Handler(fail)
        loop = SyncLoop(handler)
        async with running(loop):
            for key in ("bad", "good"):
                loop.queue.offer(key)
            await idle(loop)
        assert handler.calls == ["bad", "good", "bad", "bad", "bad"]

    async def test_the_policy_decides_on_a_failure(self) -> None:
        async def fail(_key: str) -> None:
            raise OSError

        handler = Handler(fail)
        loop = SyncLoop(handler, retry=lambda _, failures: Drop() if failures > 2 else Retry(1))
        async with running(loop):
            loop.queue.offer("a")
            await idle(loop)
        assert handler.calls == ["a", "a", "a"]

    async def test_each_sync_is_counted(self) -> None:
        loop = SyncLoop(Handler())
        async with running(loop):
            for key in ("a", "b"):
                loop.queue.offer(key)
            await idle(loop)
        assert loop.counters.read(0, ()).succeeded == 2

    async def test_the_log_lines_of_a_sync_have_its_key_and_attempt(self) -> None:
        fields: list[Mapping[str, object]] = []

        async def fail_once(_key: str) -> None:
            fields.append(log_context())
            if len(fields) < 2:
                raise OSError

        loop = SyncLoop(Handler(fail_once))
        async with running(loop):
            loop.queue.offer("a")
            await idle(loop)
        assert fields == [{"key": "a", "attempt": attempt} for attempt in (1, 2)]

    async def test_a_handler_that_awaits_a_cancelled_future_has_failed(self) -> None:
        async def wait(_key: str) -> None:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

        handler = Handler(wait)
        loop = SyncLoop(handler, retry=lambda _error, _failures: Drop())
        async with running(loop) as task:
            loop.queue.offer("a")
            await idle(loop)
            assert not task.done()


class TestStart:
    async def test_nothing_is_handled_before_every_cache_is_synced(self) -> None:
        stores = [MemoryStore(THINGS), MemoryStore(THINGS)]
        informers = [Informer(store, THINGS) for store in stores]
        handler = Handler()
        loop = SyncLoop(handler)
        for informer in informers:
            loop.watch(informer, lambda change: loop.queue.offer(change.key))
        async with running(loop):
            loop.queue.offer("a")
            async with informed(informers[0]):
                await asyncio.sleep(60)
                assert handler.calls == []
                async with informed(informers[1]):
                    await idle(loop)
                    assert handler.calls == ["a"]

    async def test_nothing_is_handled_before_the_loop_is_ready(self) -> None:
        ready = asyncio.Event()

        async def wait() -> None:
            await ready.wait()

        handler = Handler()
        loop = SyncLoop(handler)
        async with running(loop, wait):
            loop.queue.offer("a")
            await asyncio.sleep(60)
            assert handler.calls == []
            ready.set()
            await idle(loop)
            assert handler.calls == ["a"]

    async def test_the_loop_subscribes_before_the_first_listing(self) -> None:
        store = MemoryStore(THINGS)
        await store.create("a", value())
        await store.delete("a")
        informer = Informer(store, THINGS)
        changes: list[Change[Thing]] = []
        loop = SyncLoop(Handler())
        loop.watch(informer, changes.append)
        async with running(loop), informed(informer):
            assert [change.key for change in changes] == ["a"]

    async def test_a_failure_of_the_ready_hook_ends_the_loop(self) -> None:
        async def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await SyncLoop(Handler()).run(fail)


class TestWatch:
    async def test_a_change_enqueues_its_key(self) -> None:
        store = MemoryStore(THINGS)
        informer = Informer(store, THINGS)
        handler = Handler()
        loop = SyncLoop(handler)
        loop.watch(informer, lambda change: loop.queue.offer(change.key))
        async with running(loop), informed(informer):
            await store.create("a", value())
            await asyncio.sleep(1)
            await store.delete("a")
            await asyncio.sleep(1)
        assert handler.calls == ["a", "a"]

    async def test_a_stopped_loop_gets_no_changes(self) -> None:
        store = MemoryStore(THINGS)
        informer = Informer(store, THINGS)
        changes: list[Change[Thing]] = []
        loop = SyncLoop(Handler())
        loop.watch(informer, changes.append)
        async with informed(informer):
            async with running(loop):
                pass
            await store.create("a", value())
            await asyncio.sleep(1)
        assert changes == []


class TestStop:
    async def test_the_loop_ends_when_the_queue_is_shut_down(self) -> None:
        loop = SyncLoop(Handler())
        async with running(loop, workers=3) as task:
            loop.queue.shut_down(drain=False)
            await task

    async def test_running_syncs_are_finished_first(self) -> None:
        finished: list[str] = []

        async def slowly(key: str) -> None:
            await asyncio.sleep(10)
            finished.append(key)

        loop = SyncLoop(Handler(slowly))
        async with running(loop) as task:
            loop.queue.offer("a")
            await asyncio.sleep(1)
            loop.queue.shut_down(drain=False)
            await task
        assert finished == ["a"]

    async def test_the_loop_ends_when_the_policy_returns_stop(self) -> None:
        async def fail(_key: str) -> None:
            raise OSError

        loop = SyncLoop(Handler(fail), retry=lambda _error, _failures: Stop())
        async with running(loop) as task:
            loop.queue.offer("a")
            await task

    async def test_a_key_whose_sync_is_cancelled_returns_to_the_queue_unchanged(self) -> None:
        async def hang(_key: str) -> None:
            await asyncio.sleep(3600)

        loop = SyncLoop(Handler(hang))
        async with running(loop):
            loop.queue.retry("a", after=0)
            await asyncio.sleep(1)
        assert take_nowait(loop.queue) == "a"
        assert loop.queue.failures("a") == 1


class TestPauses:
    """A paused key is not synced until it is resumed."""

    async def test_a_paused_key_is_held_back(self) -> None:
        handler = Handler()
        loop = SyncLoop(handler)
        loop.paused.pauses["a"] = Pause()
        async with running(loop):
            for key in ("a", "b"):
                loop.queue.offer(key)
            await idle(loop)
        assert (handler.calls, loop.paused.is_pending("a")) == (["b"], True)

    async def test_a_resumed_key_is_synced(self) -> None:
        handler = Handler()
        loop = SyncLoop(handler)
        loop.paused.pauses["a"] = Pause()
        async with running(loop):
            del loop.paused.pauses["a"]
            loop.queue.offer("a")
            await idle(loop)
        assert handler.calls == ["a"]

    async def test_a_quarantined_key_is_held_back(self) -> None:
        handler = Handler()
        loop = SyncLoop(handler)
        deaths = Deaths(count=DEATHS_MAX, last="", state="")
        loop.paused.quarantine.found("a", deaths)
        async with running(loop):
            loop.queue.offer("a")
            await idle(loop)
        assert handler.calls == []

    @pytest.mark.parametrize("wait_s", [0.0, 1.0])
    async def test_a_sync_that_a_pause_holds_back_is_reported(self, wait_s: float) -> None:
        async def report(_key: str) -> None:
            await asyncio.sleep(wait_s)

        handler, reported = Handler(), Handler(report)
        loop = SyncLoop(handler, on_held_back=reported)
        loop.paused.pauses["a"] = Pause()
        async with running(loop):
            loop.queue.offer("a")
            await idle(loop)
        assert (handler.calls, reported.calls) == ([], ["a"])

    async def test_the_change_of_a_paused_key_waits_for_no_sync(self) -> None:
        loop = SyncLoop(Handler())
        loop.paused.pauses["a"] = Pause()
        async with running(loop):
            await asyncio.sleep(1)
            loop.queue.offer("a", changed=True)
            await idle(loop)
            assert loop.queue.unanswered() == []

    async def test_a_report_that_fails_is_retried(self) -> None:
        async def fail(_key: str) -> None:
            if len(reported.calls) < 3:
                raise OSError

        reported = Handler(fail)
        loop = SyncLoop(Handler(), on_held_back=reported)
        loop.paused.pauses["a"] = Pause()
        async with running(loop):
            loop.queue.offer("a")
            await idle(loop)
        assert reported.calls == ["a", "a", "a"]


class TestPausedController:
    """While the whole controller is paused, no worker takes a key."""

    @pytest.fixture
    async def pausing(self) -> AsyncIterator[Pausing]:
        """The pauses of a controller that is paused."""
        pausing, stores = Pausing("apps"), MemoryStores()
        self.records = stores.store(PAUSES)
        await self.records.create(controller_record("apps"), b"true")
        async with pausing.watching(stores):
            await pausing.listed.wait()
            yield pausing

    async def test_the_loop_of_a_paused_controller_is_stopped(self, pausing: Pausing) -> None:
        assert SyncLoop(Handler(), pausing=pausing).stopped
        assert not SyncLoop(Handler()).stopped

    async def test_keys_of_a_paused_controller_stay_on_the_queue(self, pausing: Pausing) -> None:
        handler = Handler()
        loop = SyncLoop(handler, pausing=pausing)
        async with running(loop, workers=2):
            for key in ("a", "b"):
                loop.queue.offer(key)
            await asyncio.sleep(3600)
            assert handler.calls == []
            assert [type(place(loop.queue, key)) for key in ("a", "b")] == [Ready, Ready]

    async def test_a_key_of_a_paused_controller_keeps_its_priority(self, pausing: Pausing) -> None:
        loop = SyncLoop(Handler(), pausing=pausing)
        async with running(loop):
            loop.queue.offer("a", priority=Priority.SECONDARY)
            await asyncio.sleep(60)
            where = place(loop.queue, "a")
            assert isinstance(where, Ready)
            assert where.priority is Priority.SECONDARY

    async def test_keys_are_synced_once_the_controller_is_resumed(self, pausing: Pausing) -> None:
        handler = Handler()
        loop = SyncLoop(handler, pausing=pausing)
        async with running(loop):
            loop.queue.offer("a")
            await asyncio.sleep(60)
            await self.records.delete(controller_record("apps"))
            await idle(loop)
        assert handler.calls == ["a"]

    async def test_a_plan_of_it_calls_the_handler(self, pausing: Pausing) -> None:
        handler = Handler()
        loop = SyncLoop(handler, pausing=pausing)
        token = current_plan.set(PlanRecord(lambda: ""))
        async with running(loop):
            current_plan.reset(token)
            loop.queue.offer("a")
            await idle(loop)
        assert handler.calls == ["a"]

    async def test_a_pause_that_is_over_leaves_no_task_behind(self, pausing: Pausing) -> None:
        loop = SyncLoop(Handler(), pausing=pausing)
        async with running(loop):
            await asyncio.sleep(60)
            tasks = asyncio.all_tasks()
            loop.queue.offer("a")
            await asyncio.sleep(60)
            await self.records.delete(controller_record("apps"))
            await idle(loop)
            await asyncio.sleep(60)
            assert asyncio.all_tasks() <= tasks

    async def test_a_paused_controller_can_be_shut_down(self, pausing: Pausing) -> None:
        handler = Handler()
        loop = SyncLoop(handler, pausing=pausing)
        async with running(loop) as task:
            loop.queue.offer("a")
            await asyncio.sleep(60)
            loop.queue.shut_down(drain=False)
            await task
        assert handler.calls == []


class TestHeldKeys:
    """The process notes which keys it syncs, so that a key that kills it is found."""

    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path) -> Iterator[None]:
        self.notes = tmp_path
        token = current_claims.set(ClaimedKeys(tmp_path))
        yield
        current_claims.reset(token)

    def keys_after_a_death(self) -> set[str]:
        """Return the keys that the next process finds if this one dies now."""
        for notes in self.notes.glob("apps.0.*.held"):
            shutil.copy(notes, self.notes / "apps.0.1-dead.held")  # without the lock
        return {key for left in ClaimedKeys(self.notes).left_behind("apps.0") for key in left.keys}

    async def test_each_worker_notes_its_key(self) -> None:
        async def slowly(_key: str) -> None:
            await asyncio.sleep(3600)

        loop = SyncLoop(Handler(slowly), pausing=Pausing("apps"))
        async with running(loop, workers=2):
            for key in ("a", "b", "c"):
                loop.queue.offer(key)
            await asyncio.sleep(1)
            assert self.keys_after_a_death() == {"a", "b"}

    @pytest.mark.parametrize("error", [None, OSError("broken")], ids=["success", "failure"])
    async def test_a_sync_that_ends_is_noted_no_more(self, error: OSError | None) -> None:
        async def end(_key: str) -> None:
            if error is not None:
                raise error

        loop = SyncLoop(Handler(end), retry=lambda *_: Drop(), pausing=Pausing("apps"))
        async with running(loop):
            loop.queue.offer("a")
            await idle(loop)
            assert self.keys_after_a_death() == set()

    async def test_a_cancelled_sync_is_no_death(self) -> None:
        async def hang(_key: str) -> None:
            await asyncio.sleep(3600)

        loop = SyncLoop(Handler(hang), pausing=Pausing("apps"))
        async with running(loop):
            loop.queue.offer("a")
            await asyncio.sleep(1)
        assert self.keys_after_a_death() == set()

    @pytest.mark.parametrize("waits_s", [0.0, 3.0])
    async def test_the_delay_that_a_handler_returns_applies(self, waits_s: float) -> None:
        async def again(_key: str) -> float:
            await asyncio.sleep(waits_s)
            return 60

        handler = Handler(again)
        loop = SyncLoop(handler, pausing=Pausing("apps"))
        async with running(loop):
            loop.queue.offer("a")
            await asyncio.sleep(150)
        assert handler.calls == ["a", "a", "a"]

    @pytest.mark.parametrize("error", [None, OSError("broken")], ids=["success", "failure"])
    async def test_a_sync_that_ends_forgets_the_deaths_of_its_key_only(
        self, error: OSError | None
    ) -> None:
        async def end(_key: str) -> None:
            if error is not None:
                raise error

        loop = SyncLoop(Handler(end), retry=lambda *_: Drop(), pausing=Pausing("apps"))
        for key in ("a", "b"):
            loop.paused.quarantine.found(key, Deaths(count=1, last="", state=""))
        async with running(loop):
            loop.queue.offer("a")
            await idle(loop)
        assert set(loop.paused.quarantine.deaths) == {"b"}

    async def test_a_death_is_counted_before_the_first_sync(self) -> None:
        async def hang(_key: str) -> None:
            await asyncio.sleep(3600)

        dying = SyncLoop(Handler(hang), pausing=Pausing("apps"))
        async with running(dying):
            dying.queue.offer("a")
            await asyncio.sleep(1)
            (notes,) = self.notes.glob("apps.0.*.held")
            shutil.copy(notes, self.notes / "apps.0.1-dead.held")
        handler = Handler()
        loop = SyncLoop(handler, pausing=Pausing("apps"))
        earlier = Deaths(count=DEATHS_MAX - 1, last="", state="")
        loop.paused.quarantine.found("a", earlier)
        async with running(loop):
            for key in ("a", "b"):
                loop.queue.offer(key)
            await idle(loop)
        assert (handler.calls, set(loop.paused.quarantine.quarantined)) == (["b"], {"a"})


class TestCancellations:
    """Code of a handler may cancel its own task, as old libraries do for a time limit."""

    async def test_a_handler_that_cancels_its_task_and_goes_on_affects_no_other_key(self) -> None:
        async def cancel(key: str) -> None:
            if key == "bad":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()

        handler = Handler(cancel)
        loop = SyncLoop(handler)
        async with running(loop):
            for key in ("bad", "good", "bad"):
                loop.queue.offer(key)
            await idle(loop)
            assert handler.calls == ["bad", "good"]
            loop.queue.offer("later")
            await idle(loop)
        assert handler.calls == ["bad", "good", "later"]

    async def test_the_loop_ends_although_its_handler_ignores_a_cancellation(self) -> None:
        async def ignore(_key: str) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

        handler = Handler(ignore)
        loop = SyncLoop(handler)
        async with running(loop) as task:
            for key in ("a", "b"):
                loop.queue.offer(key)
            await asyncio.sleep(1)
        assert task.cancelled()
        assert handler.calls == ["a"]


class TestUnknownPauses:
    async def test_nothing_is_handled_before_the_pauses_are_listed(self) -> None:
        handler, pausing = Handler(), Pausing("apps")
        pausing.listed.clear()
        loop = SyncLoop(handler, pausing=pausing)
        async with running(loop):
            loop.queue.offer("a")
            await asyncio.sleep(60)
            assert handler.calls == []
            pausing.listed.set()
            await idle(loop)
        assert handler.calls == ["a"]


class TestPlans:
    @pytest.mark.parametrize(("continuous", "retried"), [(False, False), (True, True)])
    async def test_only_a_continuous_plan_retries_a_failed_key(
        self, *, continuous: bool, retried: bool
    ) -> None:
        async def fail(_key: str) -> None:
            raise OSError

        handler = Handler(fail)
        loop = SyncLoop(handler)
        token = current_plan.set(PlanRecord(lambda: "", continuous=continuous))
        async with running(loop):
            current_plan.reset(token)
            loop.queue.offer("a")
            await asyncio.sleep(60)
        assert (len(handler.calls) > 1) == retried

    async def test_a_plan_counts_the_syncs(self) -> None:
        async def fail(key: str) -> None:
            if key == "bad":
                raise OSError

        plan = PlanRecord(lambda: "")
        loop = SyncLoop(Handler(fail))
        token = current_plan.set(plan)
        async with running(loop):
            current_plan.reset(token)
            for key in ("bad", "good"):
                loop.queue.offer(key)
            await idle(loop)
        assert plan.syncs == 2
