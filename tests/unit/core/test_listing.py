"""A listing takes effect all at once, however long it takes to tell what it changed."""

import asyncio
from collections import Counter

import pytest

from natsctl.core.cache.informer import BATCH, Informer
from natsctl.model.store import Change
from natsctl.testing.memory import MemoryStore
from tests.support.stores.sample_objects import THINGS, Thing, informed, value

KEYS = [f"k{number}" for number in range(3 * BATCH)]


class Counts:
    """Counts the changes of each key that it is told."""

    def __init__(self) -> None:
        self.told = Counter[str]()

    def __call__(self, change: Change[Thing]) -> None:
        self.told[change.key] += 1


@pytest.fixture
async def informer() -> Informer[Thing]:
    store = MemoryStore(THINGS)
    for key in KEYS:
        await store.create(key, value())
    return Informer(store, THINGS)


async def test_who_is_told_the_first_change_can_read_all_the_others(
    informer: Informer[Thing],
) -> None:
    readable: list[int] = []
    with informer.subscribe(lambda _change: readable.append(len(informer.cache))):
        async with informed(informer):
            await asyncio.sleep(1)
    assert readable == [len(KEYS)] * len(KEYS)


async def test_who_comes_while_a_listing_is_told_is_told_every_object_once(
    informer: Informer[Thing],
) -> None:
    first, second = Counts(), Counts()
    with informer.subscribe(first):
        async with informed(informer):
            assert BATCH <= len(first.told) < len(KEYS)
            with informer.subscribe(second):
                await asyncio.sleep(1)
    assert first.told == second.told == Counter(KEYS)


async def test_who_leaves_while_a_listing_is_told_is_told_no_more(
    informer: Informer[Thing],
) -> None:
    counts = Counts()
    with informer.subscribe(counts):
        task = asyncio.create_task(informer.run())
        await informer.cache.complete.wait()
    told = len(counts.told)
    await asyncio.sleep(1)
    task.cancel()
    assert len(counts.told) == told < len(KEYS)
