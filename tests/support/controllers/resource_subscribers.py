"""What the plays of resource streams share: a resource of things, and subscribers to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from natsctl.core.queue.retry import ExponentialLimiter, no_jitter
from natsctl.resource import Event, EventKind, EventStream, Resource
from natsctl.testing.memory import MemoryStore, MemoryStores
from tests.support.controllers.app_controller import put
from tests.support.stores.sample_objects import THINGS, Thing, value

Told = tuple[str, str, str]  # kind, key, text


class Stage:
    """A resource over a memory store that is seen from outside as well."""

    def __init__(self, resource: Resource[Thing], store: MemoryStore) -> None:
        self.resource = resource
        self.store = store

    async def put(self, key: str, text: str = "hi", **metadata: Any) -> int:
        """Write a thing over whatever is there."""
        return await put(self.store, key, value(text, **metadata))

    async def delete(self, *keys: str) -> None:
        for key in keys:
            await self.store.delete(key)

    async def recreate(self, key: str, text: str, uid: str) -> None:
        """Delete a thing and make another under its key."""
        await self.delete(key)
        await self.put(key, text, uid=uid)


@asynccontextmanager
async def staged(*keys: str, **metadata: Any) -> AsyncIterator[Stage]:
    """Give a resource of things, of which these are there before anybody looks."""
    stores = MemoryStores()
    async with Resource(THINGS, stores) as resource:
        stage = Stage(resource, stores.store(THINGS))
        for key in keys:
            await stage.put(key, **metadata)
        yield stage


def quick() -> ExponentialLimiter[str]:
    """Return a limiter whose delays are exactly 1, 2, 4 seconds and so on."""
    return ExponentialLimiter[str](base_s=1, jitter=no_jitter)


def told(event: Event[Thing]) -> Told:
    """Return what an event says."""
    if event.kind is EventKind.SYNC:
        return ("sync", event.key, "")
    return (event.kind.value, event.key, event.object.spec.text)


async def handled(events: EventStream[Thing], count: int) -> list[Told]:
    """Return what the next events say, each marked done."""
    seen = []
    for _ in range(count):
        event = await anext(events)
        seen.append(told(event))
        event.done()
    return seen


async def synced(events: EventStream[Thing]) -> list[Told]:
    """Return what all events up to the sync say, each marked done."""
    seen: list[Told] = []
    while not seen or seen[-1][0] != "sync":
        seen += await handled(events, 1)
    return seen


async def is_silent(events: EventStream[Thing]) -> bool:
    """Say whether for a day there is nothing to tell."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(86_400):
            raise AssertionError(f"there was {await anext(events)!r}")
    return True


def clock() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()
