"""The controller of these tests: every thing has copies, and a log of what the handler saw."""

import asyncio
from typing import Any

import msgspec

from natsctl import Controller, GarbageLimits, Object, kv, primary, secondary

THINGS, COPIES = "things", "copies"
EAGER = GarbageLimits(interval_s=0.3, grace_s=0.6, count_max=100_000, share_max=1.0)


class ThingSpec(msgspec.Struct, frozen=True):
    text: str
    copies: int = 1


class Thing(Object, frozen=True):
    spec: ThingSpec


class CopySpec(msgspec.Struct, frozen=True):
    text: str


class Copy(Object, frozen=True):
    spec: CopySpec


class Sights:
    """What the handler saw, over all runs of a test."""

    def __init__(self) -> None:
        self.synced: dict[str, str] = {}  # the text of the last sync that succeeded
        self.gone: set[str] = set()  # keys that were not there at some sync
        self.syncs = 0
        self.go_on = asyncio.Event()
        self.go_on.set()


class Copies(Controller):
    """Keeps `spec.copies` copies of every thing."""

    things = primary(kv(Thing, bucket=THINGS))
    copies = secondary(kv(Copy, bucket=COPIES, history=64))
    garbage = EAGER

    def __init__(self) -> None:
        self.sights = Sights()

    async def sync_handler(self, key: str) -> float | None:
        await self.sights.go_on.wait()
        thing = self.things.get(key)
        self.sights.syncs += 1
        if thing is None:
            self.sights.gone.add(key)
            self.sights.synced.pop(key, None)
            return None
        spec = thing.spec
        wanted = [f"{key}.{number}" for number in range(spec.copies)]
        for name in wanted:
            await self.copies.apply(name, Copy(spec=CopySpec(spec.text)))
        for name in self.copies.owned():
            if name not in wanted:
                await self.copies.delete(name)
        await self.things.update_status(key, {"said": spec.text})
        self.sights.synced[key] = spec.text
        return None


def copies_of(*, replicas: int = 1, **options: Any) -> type[Copies]:
    """Return the controller with these options for the bucket of things."""

    class Configured(Copies):
        name = "copies"
        things = primary(kv(Thing, bucket=THINGS, replicas=replicas, **options))
        copies = secondary(kv(Copy, bucket=COPIES, history=64, replicas=replicas))

    return Configured
