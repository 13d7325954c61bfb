"""A large listing takes effect at once, while its subscribers are notified in slices."""

import asyncio
from collections import Counter

import pytest

from natsctl.core.informer import Informer
from natsctl.model.store import Change
from natsctl.slices import ITEMS_MAX
from natsctl.testing import MemoryStore
from tests.support.stores.sample_objects import THINGS, Thing, informed, value

KEYS = [f"k{number}" for number in range(3 * ITEMS_MAX)]


class ChangeCounter:
    """A subscriber that counts the changes of each key."""

    def __init__(self) -> None:
        self.by_key = Counter[str]()

    def __call__(self, change: Change[Thing]) -> None:
        self.by_key[change.key] += 1


@pytest.fixture
async def informer() -> Informer[Thing]:
    store = MemoryStore(THINGS)
    for key in KEYS:
        await store.create(key, value())
    return Informer(store, THINGS)


async def test_the_cache_is_complete_at_the_first_change(
    informer: Informer[Thing],
) -> None:
    readable: list[int] = []
    async with (
        informer.subscribe(lambda _change: readable.append(len(informer.cache))),
        informed(informer),
    ):
        await asyncio.sleep(1)
    assert readable == [len(KEYS)] * len(KEYS)


async def test_a_subscriber_added_during_a_listing_gets_every_object_once(
    informer: Informer[Thing],
) -> None:
    first, second = ChangeCounter(), ChangeCounter()
    async with informer.subscribe(first), informed(informer):
        assert 0 < len(first.by_key) < len(KEYS)
        async with informer.subscribe(second):
            await asyncio.sleep(1)
    assert first.by_key == second.by_key == Counter(KEYS)


async def test_a_subscriber_that_leaves_during_a_listing_gets_no_more_changes(
    informer: Informer[Thing],
) -> None:
    counts = ChangeCounter()
    async with informer.subscribe(counts):
        task = asyncio.create_task(informer.run())
        await informer.cache.synced.wait()
    notified = len(counts.by_key)
    await asyncio.sleep(1)
    task.cancel()
    assert len(counts.by_key) == notified < len(KEYS)
