"""Controllers with a bug that one type of fault shows."""

import asyncio
import time
from contextlib import suppress
from typing import Any

from natsctl import ConflictError, NotFoundError, SimpleWatcher, Snapshot, StoreError
from tests.support.controllers.faulty import (
    CLOUD,
    CreatesUnnamed,
    MakesParts,
    SamePort,
    Shop,
    ShopSpec,
    part,
)
from tests.support.controllers.simulated_surfaces import SIGNS, SignsOfShops, hang


class TriesTwice(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        for _ in range(2):
            try:
                await self.parts.apply(key, part(shop))
            except StoreError:
                continue
            return


class GivesUpAfterAMinute(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        begun = time.time()
        await CLOUD.read(key)
        if time.time() - begun < 60:
            await self.parts.apply(key, part(shop))


class GivesUpSlowCalls(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        try:
            async with asyncio.timeout(10):
                await CLOUD.read(key)
        except TimeoutError:
            return
        await self.parts.apply(key, part(shop))


class CreatesUnlessListed(CreatesUnnamed):
    async def provide(self, key: str, shop: Shop) -> None:
        if not any(fields["owner"] == key for fields in (await CLOUD.list()).values()):
            await CLOUD.create({"owner": key})


class RemembersWrites(MakesParts):
    def __init__(self) -> None:
        self.written: dict[str, ShopSpec] = {}

    async def make(self, key: str, shop: Shop) -> None:
        if self.written.get(key) != shop.spec:
            await self.parts.apply(key, part(shop))
            self.written[key] = shop.spec


class OneAfterTheOther(SamePort):
    """Expects that one worker suffices to see the ports of all keys before."""

    workers = 1


class IgnoresConflicts(SignsOfShops):
    """Expects that a conflict is the right sign."""

    async def shown(self, shop: Snapshot[Any]) -> None:
        with suppress(ConflictError):
            await super().shown(shop)


class IgnoresUpdates(SignsOfShops):
    """Expects that a shop is deleted and created again, and never updated."""

    def watcher(self) -> SimpleWatcher:
        return SimpleWatcher(add_func=self.shown, delete_func=self.gone)


class ReplacesSigns(SignsOfShops):
    """Deletes a wrong sign, whatever its revision, and creates the right one."""

    async def shown(self, shop: Snapshot[Any]) -> None:
        image = shop.object.spec.image
        try:
            stored = await self.signs.get(shop.key)
            if stored.value == SIGNS.encode(None, {"image": image}):
                return
            await self.signs.delete(shop.key)
        except NotFoundError:
            pass
        await hang(self.signs, shop.key, image)


class TwoSteps(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        for number in (1, 2):
            await self.parts.apply(f"{key}.{number}", part(shop))


class AlwaysFails(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        raise ValueError(key)
