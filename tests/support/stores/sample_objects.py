"""Sample objects for unit tests: things, their stored bytes and their watch events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

import natsctl
from natsctl.model.store import Applied, Stored
from natsctl.testing import MemoryStore


class ThingSpec(msgspec.Struct, frozen=True):
    text: str
    groups: tuple[str, ...] = ()


class Thing(natsctl.Object, frozen=True):
    spec: ThingSpec


THINGS = natsctl.kv(Thing, bucket="things")


def thing(text: str, *groups: str) -> Thing:
    return Thing(spec=ThingSpec(text, groups))


def value(text: str = "hi", *groups: str, **metadata: Any) -> bytes:
    """Return the bytes of a thing; metadata has the field names of the stored JSON."""
    spec = {"text": text, "groups": groups}
    return msgspec.json.encode({"spec": spec, **({"metadata": metadata} if metadata else {})})


def stored(key: str, revision: int, text: str = "hi", *groups: str) -> Stored:
    return Stored(key, revision, value(text, *groups))


def applied(key: str, revision: int, text: str = "hi", *groups: str) -> Applied:
    return Applied(stored(key, revision, text, *groups))


def broken(key: str, revision: int) -> Applied:
    return Applied(Stored(key, revision, b'{"spec": {"text": 1}}'))


@asynccontextmanager
async def informed(informer: Any) -> AsyncIterator[None]:
    """Run an informer within the context, which begins once the cache is synced."""
    task = asyncio.create_task(informer.run())
    try:
        await informer.table.synced.wait()
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def caught_up(informer: Any, store: MemoryStore) -> None:
    for _ in range(1000):
        keys = store.keys()
        newest = [(await store.get(key)).revision for key in keys]
        if informer.table.revision >= max(newest, default=0):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the cache never caught up")


def document(stored: Stored) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(stored.value)
    return decoded
