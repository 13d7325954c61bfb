"""A start syncs every primary once, even if the syncs take long."""

import asyncio
from collections import Counter

import msgspec
import pytest

from natsctl import Controller, ControllerRuntime, Object, kv, primary
from natsctl.testing import MemoryStores, running

COUNT = 600
START_S = 60.0
RESYNC_S = 600.0


class ThingSpec(msgspec.Struct, frozen=True):
    text: str


class Thing(Object, frozen=True):
    spec: ThingSpec


THINGS = kv(Thing, bucket="things")


class Slow(Controller):
    """A controller whose start takes a tenth of the resync interval."""

    things = primary(THINGS)
    workers = 10
    resync_s = RESYNC_S

    def __init__(self) -> None:
        self.syncs: Counter[str] = Counter()

    async def sync_handler(self, key: str) -> float | None:
        await asyncio.sleep(1)
        self.syncs[key] += 1
        return None


async def test_a_controller_can_be_stopped_during_its_start() -> None:
    class Waiting(Slow):
        name = "slow"

        async def start(self) -> None:
            await asyncio.Event().wait()

    runtime = ControllerRuntime(Waiting(), nats=MemoryStores())
    task = asyncio.create_task(runtime.run())
    await asyncio.sleep(1)
    runtime.stop()
    await task


@pytest.fixture
async def stores() -> MemoryStores:
    stores = MemoryStores()
    store = await stores.open(THINGS)
    for number in range(COUNT):
        await store.create(f"thing{number}", b'{"spec": {"text": "hi"}}')
    return stores


async def test_the_periodic_resync_does_not_sync_the_keys_of_a_start_again(
    stores: MemoryStores,
) -> None:
    async with running(controller := Slow(), stores=stores):
        await asyncio.sleep(START_S + 1.5)
        assert controller.syncs == {f"thing{number}": 1 for number in range(COUNT)}


async def test_every_key_is_synced_again_within_an_interval_after_the_start(
    stores: MemoryStores,
) -> None:
    async with running(controller := Slow(), stores=stores):
        await asyncio.sleep(START_S + RESYNC_S + 5)
        assert min(controller.syncs.values()) == 2


async def test_the_periodic_resync_begins_even_if_the_queue_is_never_empty(
    stores: MemoryStores,
) -> None:
    class Endless(Slow):
        async def sync_handler(self, key: str) -> float | None:
            await super().sync_handler(key)
            return 0.001

    async with running(controller := Endless(), stores=stores):
        await asyncio.sleep(3 * RESYNC_S)
        assert min(controller.syncs.values()) >= 3
