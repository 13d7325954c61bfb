"""A key that a sync loop has held for long is recorded until its sync ends."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from natsctl import kv
from natsctl.core.pausing.held_file import state_directory
from natsctl.core.pausing.held_records import HeldRecord, HeldRecords, held_record
from natsctl.core.pausing.long_syncs import LONG_S, LongSyncs, long_syncs
from natsctl.core.pausing.paused_keys import PausedKeys
from natsctl.core.workqueue import WorkQueue
from natsctl.errors import NotFoundError
from natsctl.testing.memory import MemoryStore
from tests.support.places import take_nowait

WORKERS = 2


class Bench:
    """Two workers of a sync loop, and the record of the keys that they hold for long."""

    def __init__(self) -> None:
        self.queue = WorkQueue[str]()
        self.store = MemoryStore(kv(HeldRecord, bucket="natsctl"))
        self.records = HeldRecords("apps", "me", lambda: None)
        self.syncs = LongSyncs("apps", self.queue, self.records, WORKERS)

    def begin(self, key: str) -> None:
        """Begin a sync of the key that waits."""
        self.queue.offer(key)
        assert take_nowait(self.queue) == key
        self.syncs.wait()

    def end(self, key: str) -> None:
        self.syncs.end(key)
        self.queue.give_back(key)

    async def recorded(self) -> list[str]:
        """Return the keys in the record of this process."""
        await self.records.try_write(self.store)
        try:
            value = (await self.store.get(held_record("apps", "me"))).value
        except NotFoundError:
            return []
        record = msgspec.json.decode(value, type=HeldRecord)
        assert {place for place, _ in record.keys} <= {"apps"}
        return [key for _, key in record.keys]


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_key_that_is_held_for_long_is_recorded_until_its_sync_ends(bench: Bench) -> None:
    bench.begin("shop")
    await asyncio.sleep(LONG_S + 0.1)
    assert await bench.recorded() == ["shop"]
    bench.end("shop")
    assert await bench.recorded() == []


async def test_a_key_that_is_held_for_a_short_time_is_not_recorded(bench: Bench) -> None:
    bench.begin("shop")
    await asyncio.sleep(0.6 * LONG_S)
    bench.end("shop")
    bench.begin("shop")
    await asyncio.sleep(0.6 * LONG_S)
    assert await bench.recorded() == []


async def test_every_key_that_is_held_for_long_is_recorded(bench: Bench) -> None:
    bench.begin("shop")
    await asyncio.sleep(0.6 * LONG_S)
    bench.begin("bank")
    await asyncio.sleep(0.5 * LONG_S)
    assert await bench.recorded() == ["shop"]
    await asyncio.sleep(LONG_S)
    assert await bench.recorded() == ["shop", "bank"]


async def test_a_key_that_waits_in_the_queue_is_not_recorded(bench: Bench) -> None:
    bench.begin("shop")
    bench.queue.offer("bank")
    await asyncio.sleep(3 * LONG_S)
    assert await bench.recorded() == ["shop"]


async def test_a_key_that_is_held_after_an_idle_time_is_recorded(bench: Bench) -> None:
    bench.begin("shop")
    bench.end("shop")
    await asyncio.sleep(3 * LONG_S)
    bench.begin("shop")
    await asyncio.sleep(LONG_S + 0.1)
    assert await bench.recorded() == ["shop"]


async def test_a_key_that_is_held_for_long_again_is_recorded_again(bench: Bench) -> None:
    for _ in range(2):
        bench.begin("shop")
        await asyncio.sleep(2 * LONG_S)
        assert await bench.recorded() == ["shop"]
        bench.end("shop")


async def test_no_key_is_recorded_after_the_end(bench: Bench) -> None:
    bench.begin("shop")
    bench.syncs.close()
    await asyncio.sleep(3 * LONG_S)
    assert await bench.recorded() == []


class TestASyncLoop:
    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path) -> Iterator[None]:
        token = state_directory.set(tmp_path)
        yield
        state_directory.reset(token)

    def opened(self, bench: Bench, name: str) -> LongSyncs | None:
        paused = PausedKeys()
        paused.name = name
        with long_syncs(paused, bench.queue, bench.records, WORKERS) as syncs:
            return syncs

    async def test_a_sync_loop_with_a_name_records_its_keys(self, bench: Bench) -> None:
        assert self.opened(bench, "apps.0") is not None

    async def test_a_sync_loop_without_a_name_records_no_keys(self, bench: Bench) -> None:
        assert self.opened(bench, "") is None

    async def test_a_sync_loop_without_a_state_directory_records_no_keys(
        self, bench: Bench
    ) -> None:
        token = state_directory.set(None)
        assert self.opened(bench, "apps.0") is None
        state_directory.reset(token)

    async def test_a_sync_loop_records_no_keys_after_its_end(self, bench: Bench) -> None:
        paused = PausedKeys()
        paused.name, paused.place = "apps.0", "apps"
        with long_syncs(paused, bench.queue, bench.records, WORKERS) as syncs:
            assert syncs is not None
            bench.queue.offer("shop")
            take_nowait(bench.queue)
            syncs.wait()
        await asyncio.sleep(3 * LONG_S)
        assert await bench.recorded() == []
