"""In how many containers natsctl keeps the state of one key: each must forget it one day."""

import asyncio
import gc
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from natsctl import Controller, ControllerRuntime, Object, PermanentError, kv, primary, secondary
from natsctl.testing import MemoryStores, running

NEEDLE = "needle-in-a-haystack"
CONTAINERS_MAX = 15
OTHERS = ("natsctl.testing", "natsctl.core.sync")  # of the test, and of a sync while it runs


class Spec(msgspec.Struct, frozen=True):
    size: int


class Box(Object, frozen=True):
    spec: Spec


class Boxes(Controller):
    """Does what the size of a box says, and notes where the key is meanwhile."""

    boxes = primary(kv(Box, bucket="boxes"))
    lids = secondary(kv(Box, bucket="lids"))

    def __init__(self) -> None:
        self.seen: set[str] = set()

    async def sync_handler(self, key: str) -> None:
        box = self.boxes.get(key)
        if box is None:
            self.seen.update(places())
            return
        await self.reads.get(kv(Box, bucket="notes"), NEEDLE)
        self.seen.update(places())
        match box.spec.size:
            case 1:
                await self.lids.apply(f"{key}.lid", Box(spec=Spec(0)))
                self.seen.update(places())
            case 2:
                raise RuntimeError("try again")
            case 3:
                raise PermanentError("never again")


def places() -> Iterator[str]:
    """Return the attributes of natsctl's objects that are containers and have the needle.

    A container that two objects share counts once.
    """
    found = set[int]()
    for thing in gc.get_objects():
        kind = type(thing)
        module = kind.__module__
        if module.startswith("natsctl.") and not module.startswith(
            ("natsctl.testing", "natsctl.core.sync")
        ):
            for name in attributes(thing):
                container = getattr(thing, name, None)
                if id(container) not in found and contains(container):
                    found.add(id(container))
                    yield f"{kind.__name__}.{name}"


def attributes(thing: object) -> set[str]:
    slots = (getattr(kind, "__slots__", ()) for kind in type(thing).__mro__)
    names = {name for each in slots for name in ((each,) if isinstance(each, str) else each)}
    fields = getattr(type(thing), "__struct_fields__", ())
    return names | set(fields) | set(getattr(thing, "__dict__", {}))


def contains(value: Any) -> bool:
    if isinstance(value, list | deque | set | frozenset | dict):
        return any(map(is_needle, tuple(value)))
    return False


def is_needle(item: Any) -> bool:
    if isinstance(item, tuple):
        return NEEDLE in item
    if isinstance(item, dict):
        return NEEDLE in item
    return item == NEEDLE or getattr(item, "key", None) == NEEDLE


@pytest.fixture
async def few_objects() -> AsyncIterator[None]:
    """Let the garbage collector name only objects that are made from now on.

    A first run of a controller freezes all objects, once in a process.
    """
    async with running(Boxes()):
        pass
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("few_objects")
async def test_few_containers_have_the_state_of_one_key() -> None:
    stores, controller = MemoryStores(), Boxes()
    runtime = ControllerRuntime(controller, nats=stores)
    task = asyncio.create_task(runtime.run())
    store = await stores.open(kv(Box, bucket="boxes"))
    seen = controller.seen

    async def put(value: bytes) -> None:
        try:
            revision = (await store.get(NEEDLE)).revision
        except Exception:  # noqa: BLE001 - it does not exist
            await store.create(NEEDLE, value)
        else:
            await store.update(NEEDLE, value, revision=revision)
        for _ in range(20):
            seen.update(places())
            await asyncio.sleep(0.0005)

    for size in (0, 1, 2, 1, 3):
        await put(b'{"spec":{"size":%d}}' % size)
    await put(b'{"metadata":{"annotations":{"natsctl.io/paused":"true"}},"spec":{"size":4}}')
    await put(b'{"spec":{"size":"not a number"}}')
    await put(b'{"spec":{"size":0}}')
    await store.delete(NEEDLE)
    for _ in range(20):
        seen.update(places())
        await asyncio.sleep(0.0005)
    runtime.stop()
    await task
    assert len(seen) <= CONTAINERS_MAX, sorted(seen)
