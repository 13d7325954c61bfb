"""A status has the keys in the work queue, the oldest unanswered change and the last syncs."""

import asyncio

import msgspec
import pytest

from natsctl import Controller, GarbageLimits, NatsOptions, Object, kv, primary
from natsctl.core.explain import LANE_MAX, QueuedKey
from natsctl.daemon.messages import INTERVAL_S, ControllerStatus, DaemonProcess, fitting
from natsctl.daemon.operator import Runnable
from natsctl.daemon.service import ControllerEndpoints
from natsctl.errors import PermanentError
from natsctl.jetstream.connection import Connection
from natsctl.testing import MemoryStores, running
from natsctl.watchers import InformerController
from tests.support.controllers import recording_watcher as watchers
from tests.support.controllers.disk_reconciler import DISKS, Cloud, ManagedDisks

PROCESS = DaemonProcess(id="1", host="h", pid=7, version="0.1.0", started="2026-01-01T00:00:00Z")

OLD_STATUS = b"""{
  "controller": "apps", "state": "syncing", "failure": "", "primaries": 2, "keys": 2,
  "invalid": {}, "failing": {"bad": "ValueError: no luck"}, "paused": {},
  "paused_controller": null, "quarantined": {}, "contested": {}, "syncs": 3, "failures": 1,
  "watch_restarts": 0,
  "queue": {"depth": 0, "waiting": 1, "held": 0, "adds": 2, "retries": 1,
    "latency_s": {"bounds": [1.0], "counts": [2, 0], "sum": 0.1},
    "work_s": {"bounds": [1.0], "counts": [2, 0], "sum": 0.1},
    "unfinished_s": 0.0, "longest_s": 0.0},
  "missing_kinds": [], "installation": "0123456789abcdef", "garbage_held": "",
  "daemon": {"id": "a", "host": "h", "pid": 7, "version": "0.1.0",
    "started": "2026-01-01T00:00:00Z"},
  "invalid_count": 0, "failing_count": 1, "paused_count": 0, "quarantined_count": 0,
  "contested_count": 0, "members": [], "mode": "alone", "trouble": ""
}"""


class Job(Object, frozen=True):
    spec: str = ""


class Jobs(Controller):
    garbage = GarbageLimits(interval_s=1e6)
    resync_s = 1e6
    workers = 1
    jobs = primary(kv(Job, bucket="jobs"))

    async def sync_handler(self, key: str) -> float | None:
        match key.partition("-")[0]:
            case "slow":
                await asyncio.sleep(30)
            case "bad":
                raise ValueError("no luck")
            case "given":
                raise PermanentError("never")
            case "later":
                return 500.0
        return None


def endpoints(runnable: Runnable) -> ControllerEndpoints:
    return ControllerEndpoints(runnable, PROCESS, Connection(NatsOptions()))


def status(runnable: Runnable) -> ControllerStatus:
    reported = endpoints(runnable).status()
    return msgspec.json.decode(msgspec.json.encode(reported), type=ControllerStatus)


def rounded(keys: list[QueuedKey]) -> list[QueuedKey]:
    return [QueuedKey(queued.key, round(queued.s), queued.reason) for queued in keys]


async def test_a_status_lists_the_keys_in_the_queue_with_their_times_and_reasons() -> None:
    async with running(Jobs()) as harness:
        store = harness.stores.store(Jobs.jobs.kind)
        await store.create("later", b"{}")
        await harness.run_until_idle()
        await store.create("slow", b"{}")
        await asyncio.sleep(1)
        await store.create("next", b"{}")
        await asyncio.sleep(2)
        lanes = status(harness.runtime).lanes
    assert lanes is not None
    assert rounded(lanes.held) == [QueuedKey("slow", 3, "change")]
    assert rounded(lanes.ready) == [QueuedKey("next", 2, "change")]
    assert [(queued.key, queued.reason) for queued in lanes.waiting] == [("later", "delay")]
    assert 400 < lanes.waiting[0].s < 500


async def test_a_failing_key_waits_for_a_retry() -> None:
    async with running(Jobs()) as harness:
        await harness.stores.store(Jobs.jobs.kind).create("bad", b"{}")
        await asyncio.sleep(100)
        lanes = status(harness.runtime).lanes
    assert lanes is not None
    assert [(queued.key, queued.reason) for queued in lanes.waiting] == [("bad", "retry")]


async def test_a_status_has_few_keys_of_a_long_queue() -> None:
    async with running(Jobs()) as harness:
        store = harness.stores.store(Jobs.jobs.kind)
        await store.create("slow", b"{}")
        for number in range(2 * LANE_MAX):
            await store.create(f"k{number:03}", b"{}")
        await asyncio.sleep(1)
        reported = status(harness.runtime)
    assert reported.lanes is not None
    assert reported.queue is not None
    assert reported.queue.depth == 2 * LANE_MAX
    assert [queued.key for queued in reported.lanes.ready] == [f"k{n:03}" for n in range(LANE_MAX)]


async def test_a_status_that_does_not_fit_has_shorter_lanes() -> None:
    async with running(Jobs()) as harness:
        store = harness.stores.store(Jobs.jobs.kind)
        for number in range(LANE_MAX):
            await store.create(f"later-{number}", b"{}")
        await harness.run_until_idle()
        limited = status(harness.runtime).limited
    full_size = len(msgspec.json.encode(limited(LANE_MAX)))
    answer = fitting(full_size - 1, LANE_MAX, limited)
    lanes = msgspec.json.decode(answer, type=ControllerStatus).lanes
    assert lanes is not None
    assert len(lanes.waiting) == LANE_MAX // 2


async def test_the_oldest_unanswered_change_is_that_of_a_failing_key() -> None:
    async with running(Jobs()) as harness:
        store = harness.stores.store(Jobs.jobs.kind)
        await store.create("bad", b"{}")
        await asyncio.sleep(100)
        await store.create("good", b"{}")
        await asyncio.sleep(1)
        reported = status(harness.runtime)
    assert reported.unanswered == 1
    assert reported.oldest_unanswered_s is not None
    assert reported.oldest_unanswered_s >= 100


async def test_there_is_no_oldest_change_if_all_are_answered() -> None:
    async with running(Jobs()) as harness:
        await harness.stores.store(Jobs.jobs.kind).create("good", b"{}")
        await harness.run_until_idle()
        reported = status(harness.runtime)
    assert (reported.unanswered, reported.oldest_unanswered_s) == (0, None)


async def test_a_status_counts_the_syncs_of_each_interval() -> None:
    async with running(Jobs()) as harness:
        store = harness.stores.store(Jobs.jobs.kind)
        served = endpoints(harness.runtime)
        await store.create("good", b"{}")
        await asyncio.sleep(INTERVAL_S)
        served.note_activity()
        await store.create("given-up", b"{}")
        await asyncio.sleep(1)
        activity = served.status().activity
    assert activity is not None
    assert (activity.syncs, activity.failures) == ([1, 1], [0, 1])


async def test_the_status_of_an_older_daemon_has_no_lanes_and_no_activity() -> None:
    decoded = msgspec.json.decode(OLD_STATUS, type=ControllerStatus)
    assert (decoded.lanes, decoded.unanswered, decoded.activity) == (None, None, None)
    assert decoded.queue is not None
    assert (decoded.failing_count, decoded.queue.waiting) == (1, 1)


async def test_an_older_client_decodes_a_new_status() -> None:
    class OlderStatus(msgspec.Struct):
        controller: str
        state: str

    async with running(Jobs()) as harness:
        answer = msgspec.json.encode(status(harness.runtime))
    assert msgspec.json.decode(answer, type=OlderStatus) == OlderStatus("jobs", "syncing")


async def test_watchers_report_their_queue_and_the_oldest_change_that_failed() -> None:
    stores, notes = MemoryStores(), watchers.RecordingWatcher()
    notes.failures = 1_000
    controller = InformerController(name="sites")
    controller.add_informer(watchers.SITES)
    controller.add_watcher(notes, watchers.SITES)
    async with watchers.running(controller, stores):
        await watchers.put(stores.store(watchers.SITES), "athens", watchers.site("one"))
        await asyncio.sleep(7)
        reported = status(controller)
    assert reported.lanes is not None
    assert [(queued.key, queued.reason) for queued in reported.lanes.waiting] == [
        ("athens", "retry")
    ]
    assert reported.unanswered == 1
    assert reported.oldest_unanswered_s == pytest.approx(7, abs=0.5)


async def test_watchers_that_processed_every_change_have_no_unanswered_change() -> None:
    stores, notes = MemoryStores(), watchers.RecordingWatcher()
    controller = InformerController(name="sites")
    controller.add_informer(watchers.SITES)
    controller.add_watcher(notes, watchers.SITES)
    async with watchers.running(controller, stores):
        await watchers.put(stores.store(watchers.SITES), "athens", watchers.site("one"))
        await asyncio.sleep(1)
        reported = status(controller)
    assert (reported.unanswered, reported.oldest_unanswered_s) == (0, None)


class Disks(ManagedDisks):
    cloud = Cloud()


async def test_managed_objects_wait_for_their_next_poll() -> None:
    stores, controller = MemoryStores(), Disks()
    controller.use(nats=stores)
    task = asyncio.create_task(controller.run())
    await controller.synced.wait()
    await stores.store(DISKS).create("data", b'{"spec": {"size": 5}}')
    await asyncio.sleep(30)
    reported = status(controller)
    controller.stop()
    await task
    assert reported.lanes is not None
    assert [(queued.key, queued.reason) for queued in reported.lanes.waiting] == [("data", "delay")]
    assert reported.unanswered == 0
