"""A process knows no pause and no state of objects whose values it does not keep."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from natsctl.core.cache.informer import Informer
from natsctl.core.cache.keeping import Keeping
from natsctl.core.pausing.paused_keys import PausedKeys
from natsctl.model.store import Change
from natsctl.testing.memory import MemoryStore
from tests.support.controllers.app_controller import APPS, App, put

VALUE = {
    "metadata": {"annotations": {"natsctl.io/paused": "true"}},
    "spec": {"text": "hi", "parts": ["main"]},
}


@asynccontextmanager
async def following(
    store: MemoryStore, keeps: Callable[[str], bool]
) -> AsyncIterator[tuple[Informer[App], PausedKeys]]:
    """Run an informer that keeps some values, and follow the pauses of its objects."""
    informer, paused = Informer(store, APPS, keeping=Keeping(keeps)), PausedKeys()
    paused.follow((informer,))

    def observe(change: Change[App]) -> None:
        paused.observe(change)

    run = asyncio.create_task(informer.run())
    await informer.cache.synced.wait()
    async with informer.subscribe(observe):
        yield informer, paused
    paused.close()
    run.cancel()


async def test_the_state_of_an_object_whose_value_is_not_kept_is_read_from_the_store() -> None:
    store = MemoryStore(APPS)
    await put(store, "shop", VALUE)
    async with following(store, lambda _: False) as (_, paused):
        assert paused.state("shop") is None
        assert await paused.read_state("shop") == APPS.digest((await store.get("shop")).value)


async def test_the_state_of_an_object_that_does_not_exist_is_empty() -> None:
    async with following(MemoryStore(APPS), lambda _: False) as (_, paused):
        assert await paused.read_state("shop") == ""


async def test_a_pause_is_forgotten_with_the_value_and_known_when_it_is_read_again() -> None:
    store, kept = MemoryStore(APPS), {"shop"}
    await put(store, "shop", VALUE)
    async with following(store, kept.__contains__) as (informer, paused):
        assert list(paused.pauses) == ["shop"]
        kept.clear()
        await informer.release(("shop",))
        paused.forget_unread()
        assert not paused.pauses
        kept.add("shop")
        await informer.fill((await store.get("shop"),))
        assert list(paused.pauses) == ["shop"]
