"""Recorded deliveries to watchers are replayed in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from natsctl import Object, SimpleWatcher, Snapshot, kv
from natsctl.core.environment import within
from natsctl.core.record.document import Recording, decode_recording
from natsctl.core.record.recordings import Recordings
from natsctl.core.record.writing import recording_of
from natsctl.errors import UsageError
from natsctl.managed import ManagedController
from natsctl.model.store import Store
from natsctl.testing import MemoryStore, MemoryStores, ReplayedSync, VirtualTimeLoop
from natsctl.testing.replaying.outcome import Verdict
from natsctl.testing.replaying.replay import replay_recording
from natsctl.watchers import InformerController, OpinionatedWatcher
from tests.support.eventually import eventually


class SiteSpec(msgspec.Struct, frozen=True):
    text: str


class Site(Object, frozen=True):
    spec: SiteSpec


SITES = kv(Site, bucket="sites")
PAGES = kv(bytes, bucket="pages")
STORED = Path(__file__).parent / "recordings" / "version2-watchers.json"


class Sites(InformerController):
    """Copies each site to a page, unless the text of the site is bad."""

    good: tuple[str, ...] = ("hi", "hello")

    def __init__(self, **targets: Any) -> None:
        super().__init__(name="sites", **targets)
        self.add_informer(SITES)
        self.add_watcher(SimpleWatcher(add_func=self.add, update_func=self.change), SITES)
        self.add_watcher(SimpleWatcher(delete_func=self.remove), SITES)

    async def start(self) -> None:
        self.pages: Store = await self.open(PAGES)

    async def add(self, new: Snapshot[Site]) -> None:
        self.check(new)
        await self.pages.create(new.key, new.object.spec.text.encode())

    async def change(self, old: Snapshot[Site], new: Snapshot[Site]) -> None:
        self.check(new)
        page = await self.pages.get(old.key)
        await self.pages.update(new.key, new.object.spec.text.encode(), revision=page.revision)

    async def remove(self, last: Snapshot[Site]) -> None:
        await self.pages.delete(last.key)

    def check(self, new: Snapshot[Site]) -> None:
        if new.object.spec.text not in self.good:
            raise ValueError(f"cannot show {new.object.spec.text!r}")


class CorrectedSites(Sites):
    """Accepts every text."""

    good = ("hi", "hello", "bad")


class HeldSites(Sites):
    """Copies each site with a watcher that misses no change."""

    def __init__(self, **targets: Any) -> None:
        InformerController.__init__(self, name="sites", **targets)
        self.add_informer(SITES)
        watcher = OpinionatedWatcher(
            SITES, add_func=self.add, update_func=self.change, delete_func=self.remove
        )
        self.add_watcher(watcher, SITES)


Happens = Callable[[MemoryStore], Awaitable[object]]


def site(text: str) -> bytes:
    return msgspec.json.encode({"spec": {"text": text}})


async def put(sites: MemoryStore, text: str) -> None:
    stored = await sites.get("a")
    document = {**msgspec.json.decode(stored.value), "spec": {"text": text}}
    await sites.update("a", msgspec.json.encode(document), revision=stored.revision)


def record_call(controller: type[Sites], text: str, *changes: Happens) -> Recording:
    """Return the recording of the last delivery after the site `a` and the *changes*.

    A failed delivery comes before the others, as in a daemon.
    """

    async def record() -> Recording:
        stores, recordings = MemoryStores(), Recordings(everything=True)
        sites, running = stores.store(SITES), controller(nats=stores)
        with within(recordings=recordings):
            task = asyncio.create_task(running.run())
        await running.synced.wait()
        await sites.create("a", site(text))
        await eventually(lambda: recordings.of("sites", "a"))
        for change in changes:
            await asyncio.sleep(1)
            await change(sites)
        await asyncio.sleep(1)
        syncs = recordings.of("sites", "a")
        last = [sync for sync in syncs if sync.operation == syncs[-1].operation]
        kept = max(last, key=lambda sync: (sync.failed, len(sync.steps), sync.started))
        running.stop()
        await task
        recorded = recording_of(
            kept, running.host.informers, SITES, surface="watchers", masked=True
        )
        return decode_recording(recorded.encoded())

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(record())


def replayed(recorded: Recording, controller: type[object]) -> ReplayedSync:
    return replay_recording(recorded, controller)


def test_a_failed_delivery_fails_as_recorded() -> None:
    result = replayed(record_call(Sites, "bad"), Sites)
    assert result.verdict is Verdict.AS_RECORDED
    assert str(result.replayed) == "ValueError: cannot show 'bad'"


def test_a_corrected_watcher_gets_the_same_change_and_succeeds() -> None:
    result = replayed(record_call(Sites, "bad"), CorrectedSites)
    assert (result.verdict, result.writes) == (Verdict.SUCCEEDED, ("create kv/pages a",))


@pytest.mark.parametrize("controller", [Sites, HeldSites])
def test_an_update_is_delivered_with_the_state_before(controller: type[Sites]) -> None:
    recorded = record_call(controller, "hi", lambda sites: put(sites, "hello"))
    assert recorded.operation == "update"
    result = replayed(recorded, controller)
    assert (result.verdict, result.other_writes) == (Verdict.SUCCEEDED, ())
    assert "update kv/pages a" in result.writes


def test_a_deletion_goes_to_the_watcher_that_got_it() -> None:
    recorded = record_call(Sites, "hi", lambda sites: sites.delete("a"))
    assert recorded.delivery is not None
    assert (recorded.operation, recorded.delivery.watcher) == ("delete", "SimpleWatcher 2")
    assert replayed(recorded, Sites).writes == ("delete kv/pages a",)


def test_a_read_that_was_not_recorded_is_listed() -> None:
    recorded = record_call(Sites, "hi", lambda sites: put(sites, "bad"))
    result = replayed(recorded, CorrectedSites)
    assert (result.verdict, result.missing) == (Verdict.NOT_RECORDED, ("kv/pages a",))


def test_an_added_object_gets_the_finalizers_again() -> None:
    result = replayed(record_call(HeldSites, "hi"), HeldSites)
    assert (result.verdict, result.other_writes) == (Verdict.SUCCEEDED, ())


def test_a_released_object_is_cleaned_up_again() -> None:
    async def go(sites: MemoryStore) -> None:
        stored = await sites.get("a")
        document = msgspec.json.decode(stored.value)
        document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        await sites.update("a", msgspec.json.encode(document), revision=stored.revision)

    recorded = record_call(HeldSites, "hi", go)
    result = replayed(recorded, HeldSites)
    assert (result.verdict, result.other_writes) == (Verdict.SUCCEEDED, ())


def test_a_stored_recording_of_version_2_is_replayed() -> None:
    recorded = decode_recording(STORED.read_bytes())
    assert recorded.version == 2
    assert replayed(recorded, Sites).verdict is Verdict.AS_RECORDED
    assert replayed(recorded, CorrectedSites).writes == ("create kv/pages a",)


def test_a_controller_without_the_watcher_is_refused() -> None:
    class Others(InformerController):
        def __init__(self) -> None:
            super().__init__(name="sites")
            self.add_informer(SITES)

    with pytest.raises(UsageError, match="sites has no watcher SimpleWatcher"):
        replayed(record_call(Sites, "hi"), Others)


def test_a_managed_controller_is_refused() -> None:
    with pytest.raises(
        UsageError, match="ManagedController isn't a subclass of InformerController"
    ):
        replayed(record_call(Sites, "hi"), ManagedController)
