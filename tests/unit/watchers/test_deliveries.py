"""The queue of undelivered changes is bounded and merges beyond its bound."""

import asyncio

import pytest

from natsctl import give_up_after
from natsctl.core.history import SyncHistory
from natsctl.core.pauses import Pausing
from natsctl.core.workqueue import Priority
from natsctl.model.store import Stored
from natsctl.testing import MemoryStore
from natsctl.watchers.deliveries import Deliveries
from natsctl.watchers.failed_calls import Policies, Registration
from natsctl.watchers.merged_changes import ObjectChange
from tests.support.controllers.recording_watcher import SITES, RecordingWatcher, site
from tests.support.eventually import eventually

STORE = MemoryStore(SITES)


def stored(key: str, text: str | None) -> Stored | None:
    return None if text is None else Stored(key, 1, site(text))


def enqueue(
    deliveries: Deliveries, key: str, before: str | None, after: str | None, **options: Registration
) -> None:
    change = ObjectChange(key, SITES, STORE, stored(key, before), stored(key, after))
    deliveries.add(change, priority=Priority.USER, **options)  # type: ignore[arg-type]


async def deliver_all(deliveries: Deliveries) -> None:
    task = asyncio.create_task(deliveries.loop("things", timeout_s=60).run(no_wait))
    await eventually(lambda: deliveries.queue.idle)
    deliveries.queue.shut_down(drain=False)
    await task


@pytest.fixture
def recording() -> RecordingWatcher:
    return RecordingWatcher()


def bounded(recording: RecordingWatcher, changes_max: int) -> Deliveries:
    deliveries = Deliveries(
        "sites",
        Policies(None, give_up_after(0), None),
        history=SyncHistory("sites"),
        pausing=Pausing("sites"),
        changes_max=changes_max,
    )
    deliveries.registrations = (Registration(recording),)
    return deliveries


async def test_changes_up_to_the_bound_are_delivered_one_by_one(
    recording: RecordingWatcher,
) -> None:
    deliveries = bounded(recording, 3)
    enqueue(deliveries, "athens", None, "one")
    enqueue(deliveries, "athens", "one", "two")
    enqueue(deliveries, "athens", "two", "three")
    await deliver_all(deliveries)
    assert recording.calls == ["add athens one", "update athens one two", "update athens two three"]


async def test_changes_of_an_object_beyond_the_bound_are_merged(
    recording: RecordingWatcher,
) -> None:
    deliveries = bounded(recording, 2)
    enqueue(deliveries, "athens", None, "one")
    enqueue(deliveries, "athens", "one", "two")
    for before, after in (("two", "three"), ("three", None), (None, "four"), ("four", "five")):
        enqueue(deliveries, "athens", before, after)
    enqueue(deliveries, "berlin", None, "one")
    await deliver_all(deliveries)
    assert recording.calls == [
        "add athens one",
        "add berlin one",
        "delete athens three",
        "add athens five",
    ]


async def test_delivered_changes_free_the_bound(recording: RecordingWatcher) -> None:
    deliveries = bounded(recording, 2)
    task = asyncio.create_task(deliveries.loop("things", timeout_s=60).run(no_wait))
    for _ in range(3):
        enqueue(deliveries, "athens", None, "one")
        enqueue(deliveries, "athens", "one", "two")
        enqueue(deliveries, "athens", "two", "three")
        await asyncio.sleep(1)
    deliveries.queue.shut_down(drain=False)
    await task
    assert recording.calls == ["add athens one", "update athens one three"] * 3


async def test_a_change_can_be_addressed_to_one_watcher(recording: RecordingWatcher) -> None:
    deliveries = bounded(recording, 10)
    other_recording = RecordingWatcher()
    registration = Registration(other_recording)
    deliveries.registrations = (*deliveries.registrations, registration)
    enqueue(deliveries, "athens", None, "one", to=(registration,))  # type: ignore[arg-type]
    await deliver_all(deliveries)
    assert (recording.calls, other_recording.calls) == ([], ["add athens one"])


async def test_without_watchers_no_change_is_queued(recording: RecordingWatcher) -> None:
    deliveries = bounded(recording, 10)
    deliveries.registrations = ()
    enqueue(deliveries, "athens", None, "one")
    assert deliveries.queue.idle


async def test_the_oldest_unanswered_change_is_that_of_the_slowest_object(
    recording: RecordingWatcher,
) -> None:
    deliveries = bounded(recording, 10)
    enqueue(deliveries, "athens", None, "one")
    await asyncio.sleep(3)
    enqueue(deliveries, "berlin", None, "one")
    await asyncio.sleep(2)
    assert deliveries.unanswered == 2
    assert deliveries.oldest_unanswered_s == pytest.approx(5)


async def test_an_object_with_more_changes_is_unanswered_since_its_last_delivery(
    recording: RecordingWatcher,
) -> None:
    recording.takes_s = 4
    deliveries = bounded(recording, 10)
    enqueue(deliveries, "athens", None, "one")
    enqueue(deliveries, "athens", "one", "two")
    await asyncio.sleep(3)
    task = asyncio.create_task(deliveries.loop("things", timeout_s=60).run(no_wait))
    await asyncio.sleep(6)
    assert deliveries.oldest_unanswered_s == pytest.approx(2)
    deliveries.queue.shut_down(drain=False)
    await task


async def no_wait() -> None:
    """Return at once: nothing has to be synced."""
