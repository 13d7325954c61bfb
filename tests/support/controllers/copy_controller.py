"""The controller of the fault tests: it creates copies of things and records its syncs."""

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
    """The results of the syncs, over all runs of a test."""

    def __init__(self) -> None:
        self.synced: dict[str, str] = {}  # the text of the last sync that succeeded
        self.gone: set[str] = set()  # keys that did not exist at some sync
        self.syncs = 0
        self.go_on = asyncio.Event()
        self.go_on.set()


class Copies(Controller):
    things = primary(kv(Thing, bucket=THINGS))
    copies = secondary(kv(Copy, bucket=COPIES, history=64))
    garbage = EAGER

    def __init__(self) -> None:
        self.sights = Sights()

    async def sync_handler(self, key: str) -> float | None:
        await self.sights.go_on.wait()
        stored_thing = self.things.get(key)
        self.sights.syncs += 1
        if stored_thing is None:
            self.sights.gone.add(key)
            self.sights.synced.pop(key, None)
            return None
        spec = stored_thing.spec
        desired = [f"{key}.{number}" for number in range(spec.copies)]
        for name in desired:
            await self.copies.apply(name, Copy(spec=CopySpec(spec.text)))
        for name in self.copies.owned():
            if name not in desired:
                await self.copies.delete(name)
        await self.things.update_status(key, {"said": spec.text})
        self.sights.synced[key] = spec.text
        return None


def copies_of(*, replicas: int = 1, **options: Any) -> type[Copies]:
    """Return a controller class whose bucket of things has these options."""

    class Configured(Copies):
        name = "copies"
        things = primary(kv(Thing, bucket=THINGS, replicas=replicas, **options))
        copies = secondary(kv(Copy, bucket=COPIES, history=64, replicas=replicas))

    return Configured
