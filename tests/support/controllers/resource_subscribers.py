"""A resource of things over a memory store, and helpers that handle its events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from natsctl import ExponentialLimiter
from natsctl.resource import Event, EventKind, EventStream, Resource
from natsctl.testing import MemoryStore, MemoryStores
from tests.support.stores.documents import put
from tests.support.stores.sample_objects import THINGS, Thing, value

EventContent = tuple[str, str, str]  # kind, key, text


class ResourceHarness:
    """A resource over a memory store, with writes to the store."""

    def __init__(self, resource: Resource[Thing], store: MemoryStore) -> None:
        self.resource = resource
        self.store = store

    async def put(self, key: str, text: str = "hi", **metadata: Any) -> int:
        return (await put(self.store, key, value(text, **metadata))).revision

    async def delete(self, *keys: str) -> None:
        for key in keys:
            await self.store.delete(key)

    async def recreate(self, key: str, text: str, uid: str) -> None:
        await self.delete(key)
        await self.put(key, text, uid=uid)


@asynccontextmanager
async def resource_harness(*keys: str, **metadata: Any) -> AsyncIterator[ResourceHarness]:
    stores = MemoryStores()
    async with Resource(THINGS, stores) as resource:
        harness = ResourceHarness(resource, stores.store(THINGS))
        for key in keys:
            await harness.put(key, **metadata)
        yield harness


def exact_backoff() -> ExponentialLimiter[str]:
    return ExponentialLimiter[str](base_s=1, jitter=lambda: 0.0)


def content_of(event: Event[Thing]) -> EventContent:
    if event.kind is EventKind.SYNC:
        return ("sync", event.key, "")
    return (event.kind.value, event.key, event.object.spec.text)


async def handled(events: EventStream[Thing], count: int) -> list[EventContent]:
    seen = []
    for _ in range(count):
        event = await anext(events)
        seen.append(content_of(event))
        event.done()
    return seen


async def synced(events: EventStream[Thing]) -> list[EventContent]:
    """Return the contents of all events up to the sync, and mark each event done."""
    seen: list[EventContent] = []
    while not seen or seen[-1][0] != "sync":
        seen += await handled(events, 1)
    return seen


async def is_silent(events: EventStream[Thing]) -> bool:
    """Return True if no event follows within a day; otherwise the assertion fails."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(86_400):
            raise AssertionError(f"unexpected event: {await anext(events)!r}")
    return True


def clock() -> float:
    return asyncio.get_running_loop().time()
