"""A new leader waits until its caches include the newest writes of their stores."""

import asyncio

import pytest

from natsctl import kube
from natsctl.core.informer import BEHIND_S, Informer, catch_up
from natsctl.errors import StoreMissingError
from natsctl.model.store import Applied, Listed, Listing
from natsctl.testing import MemoryStore, MemoryStores
from tests.support.stores.sample_objects import THINGS, Thing, value


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(THINGS)


@pytest.fixture
def informer(store: MemoryStore) -> Informer[Thing]:
    return Informer(store, THINGS)


async def test_catch_up_waits_until_the_cache_has_the_newest_write(
    store: MemoryStore, informer: Informer[Thing]
) -> None:
    created = await store.create("a", value())
    waiting = asyncio.create_task(catch_up([informer]))
    await asyncio.sleep(1)
    assert not waiting.done()
    for event in (Listing("1"), Applied(created), Listed(created.revision)):
        informer.cache.apply(event)
    await waiting


async def test_a_cache_that_stays_behind_is_logged_and_waited_for(
    store: MemoryStore, informer: Informer[Thing], caplog: pytest.LogCaptureFixture
) -> None:
    created = await store.create("a", value())
    waiting = asyncio.create_task(catch_up([informer]))
    await asyncio.sleep(2.5 * BEHIND_S)
    assert not waiting.done()
    assert caplog.text.count("no key is synced until the cache shows the newest writes") == 2
    for event in (Listing("1"), Applied(created), Listed(created.revision)):
        informer.cache.apply(event)
    await waiting


async def test_a_write_that_was_removed_since_is_not_waited_for(
    store: MemoryStore, informer: Informer[Thing]
) -> None:
    await store.create("a", value())
    waiting = asyncio.create_task(catch_up([informer]))
    await asyncio.sleep(BEHIND_S / 2)
    store.vanish("a")
    await waiting
    assert asyncio.get_running_loop().time() == BEHIND_S


async def test_a_store_that_fails_is_logged(
    store: MemoryStore, informer: Informer[Thing], caplog: pytest.LogCaptureFixture
) -> None:
    store.fail(StoreMissingError("no bucket"))
    await catch_up([informer])
    assert "no bucket" in caplog.text


async def test_a_store_without_a_newest_revision_is_not_waited_for() -> None:
    store = MemoryStores().kube.store(kube("v1", "ConfigMap", namespace="default"))
    await catch_up([Informer(store, store.kind)])
    assert asyncio.get_running_loop().time() == 0
