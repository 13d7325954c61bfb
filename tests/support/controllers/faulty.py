"""Controllers with one bug each, and the same controllers without it."""

import asyncio
import signal
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from natsctl import (
    ConflictError,
    Controller,
    ExistsError,
    ManagedController,
    ManagedReconciler,
    Object,
    PermanentError,
    Primary,
    StoreError,
    finalized,
    kv,
    primary,
    secondary,
    tertiary,
)
from natsctl.testing import ExternalError, SimulatedExternal, StoredObjects


class ShopSpec(msgspec.Struct, frozen=True):
    image: str = "nginx"
    parts: int = 1
    name: str = ""


class Shop(Object, frozen=True):
    spec: ShopSpec


class PartSpec(msgspec.Struct, frozen=True):
    image: str = ""
    port: int = 0
    note: str = ""


class Part(Object, frozen=True):
    spec: PartSpec


class ConfigSpec(msgspec.Struct, frozen=True):
    registry: str = ""


class Config(Object, frozen=True):
    spec: ConfigSpec


SHOPS = kv(Shop, bucket="shops")
PARTS = kv(Part, bucket="parts")
CONFIGS = kv(Config, bucket="configs")

DOCUMENTS: tuple[dict[str, Any], ...] = (
    {"key": "a", "spec": {"image": "nginx", "parts": 1}},
    {"key": "a", "spec": {"image": "caddy", "parts": 2}},
    {"key": "b", "spec": {"image": "nginx", "parts": 1, "name": "bob"}},
    {"key": "b", "spec": {"image": "nginx", "parts": 1, "name": "eve"}},
    {"key": "c", "spec": {"image": "httpd"}},
)
WITH_CONFIG = (*DOCUMENTS, {"bucket": "configs", "key": "all", "spec": {"registry": "one"}})


class MakesParts(Controller):
    shops = primary(SHOPS)
    parts = secondary(PARTS)

    async def sync_handler(self, key: str) -> float | None:
        shop = self.shops.get(key)
        if shop is not None:
            await self.make(key, shop)
        return None

    async def make(self, key: str, shop: Shop) -> None:
        raise NotImplementedError


def part(shop: Shop, **fields: Any) -> Part:
    return Part(spec=PartSpec(image=shop.spec.image, **fields))


class CountedNames(MakesParts):
    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    async def make(self, key: str, shop: Shop) -> None:
        name = self.names.setdefault(key, f"part-{len(self.names)}")
        await self.parts.apply(name, part(shop), adopt=True)


class FixedNames(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        await self.parts.apply(f"part-{key}", part(shop))


class RandomNames(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        if not self.parts.owned():
            await self.parts.apply(f"{key}-{uuid.uuid4().hex[:8]}", part(shop))


class TimeInSpec(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        await self.parts.apply(key, part(shop, note=datetime.now(UTC).isoformat()))


class TimeOfCreation(MakesParts):
    """Keeps the time of its creation, which is no field of the spec."""

    async def make(self, key: str, shop: Shop) -> None:
        await self.parts.apply(key, part(shop))
        if "since" not in shop.status:
            await self.shops.update_status(key, {"since": datetime.now(UTC).isoformat()})


class ExistsIsRight(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        if self.parts.get(key) is None:
            await self.parts.apply(key, part(shop))


class RemembersInMemory(MakesParts):
    def __init__(self) -> None:
        self.made: dict[str, ShopSpec] = {}

    async def make(self, key: str, shop: Shop) -> None:
        if self.made.get(key) != shop.spec:
            self.made[key] = shop.spec
            await self.parts.apply(key, part(shop))


class SwallowsErrors(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        try:
            await self.parts.apply(key, part(shop))
        except StoreError:
            return


CARDS = SimulatedExternal("cards")


class ChargesOnce(Controller):
    """Charges an order once, also if its amount changes later."""

    shops = primary(SHOPS)

    async def sync_handler(self, key: str) -> float | None:
        shop = self.shops.get(key)
        if shop is not None and not shop.status.get("charged"):
            await CARDS.create({"shop": key, "amount": shop.spec.parts})
            await self.shops.update_status(key, {"charged": True})
        return None


class WaitsInVain(MakesParts):
    """Needs the part of another shop, and asks for no other sync while that is missing."""

    async def make(self, key: str, shop: Shop) -> None:
        if key == "a" or self.parts.get("part-a") is not None:
            await self.parts.apply(f"part-{key}", part(shop))


class MakesShops(Controller):
    shops = primary(SHOPS)

    async def sync_handler(self, key: str) -> float | None:
        name, _, number = key.partition("-")
        with suppress(ConflictError):
            await self.shops.create(f"{name}-{int(number or 0) + 1}", Shop(spec=ShopSpec()))
        return None


class ReadsByName(MakesParts):
    """Reads a kind that no slot declares."""

    async def make(self, key: str, shop: Shop) -> None:
        config = await self.reads.get(CONFIGS, "all")
        if config is not None:
            await self.parts.apply(key, part(shop, note=config.spec.registry))


class IgnoresCancellation(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)


class ReportsErrors(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        try:
            await self.parts.apply(key, part(shop))
        except StoreError as error:
            await self.shops.update_status(key, {"error": str(error)})
            raise
        await self.shops.update_status(key, {"error": None})


class RestlessStatus(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        await self.parts.apply(key, part(shop))
        syncs = shop.status.get("syncs", 0)
        await self.shops.update_status(key, {"syncs": int(str(syncs)) + 1})


class MakesSoonAfter(MakesParts):
    """Makes its object in the next sync, which it requests for a moment later."""

    async def sync_handler(self, key: str) -> float | None:
        shop = self.shops.get(key)
        if shop is not None and "begun" not in shop.status:
            await self.shops.update_status(key, {"begun": True})
            return 0.0102
        return await super().sync_handler(key)

    async def make(self, key: str, shop: Shop) -> None:
        await self.parts.apply(key, part(shop))


class DoneBeforeDoing(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        if shop.status.get("done") != shop.spec.image:
            await self.shops.update_status(key, {"done": shop.spec.image})
            await self.parts.apply(key, part(shop))


class DoneAfterDoing(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        await self.parts.apply(key, part(shop))
        await self.shops.update_status(key, {"done": shop.spec.image})


class LeavesRenamed(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        await self.parts.apply(f"{key}.{shop.spec.name or 'main'}", part(shop))


class DeletesRenamed(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        wanted = f"{key}.{shop.spec.name or 'main'}"
        await self.parts.apply(wanted, part(shop))
        for name in self.parts.owned():
            if name != wanted:
                await self.parts.delete(name)


class DeletesAllFirst(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        for name in self.parts.owned():
            await self.parts.delete(name)
        for number in range(shop.spec.parts):
            await self.parts.apply(f"{key}.{number}", part(shop))


class DeletesUnwanted(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        wanted = [f"{key}.{number}" for number in range(shop.spec.parts)]
        for name in wanted:
            await self.parts.apply(name, part(shop))
        for name in set(self.parts.owned()).difference(wanted):
            await self.parts.delete(name)


class SamePort(MakesParts):
    """Allocates the first port that the cache shows as free."""

    async def make(self, key: str, shop: Shop) -> None:
        existing = self.parts.get(key)
        port = existing.spec.port if existing else self._free()
        await self.parts.apply(key, part(shop, port=port))

    def _free(self) -> int:
        taken = {part.spec.port for part in self.parts.items().values()}
        return next(port for port in range(8000, 9000) if port not in taken)


class ReservedPort(MakesParts):
    """Reserves a port by an object whose key is the port."""

    async def make(self, key: str, shop: Shop) -> None:
        name = next(iter(self.parts.owned()), None) or await self._reserved(shop)
        port = int(name.removeprefix("port-"))
        await self.parts.apply(name, part(shop, port=port))

    async def _reserved(self, shop: Shop) -> str:
        for port in range(8000, 9000):
            if self.parts.get(f"port-{port}") is None:
                with suppress(ExistsError):
                    await self.parts.create(f"port-{port}", part(shop))
                    return f"port-{port}"
        raise PermanentError("no port is free")


class StaleQuota(MakesParts):
    """Grants from a quota by a cache that lacks the writes of other keys."""

    async def make(self, key: str, shop: Shop) -> None:
        used = sum(
            existing.spec.port for name, existing in self.parts.items().items() if name != key
        )
        if used < 2:
            await self.parts.apply(key, part(shop, port=2))


class ReservedQuota(MakesParts):
    """Grants from a quota by an object that one key can create; the others ask again."""

    async def sync_handler(self, key: str) -> float | None:
        try:
            return await super().sync_handler(key)
        except ExistsError:
            return 10.0

    async def make(self, key: str, shop: Shop) -> None:
        await self.parts.apply("quota", part(shop, port=2))


class ReadsConfigAtStart(MakesParts):
    configs = tertiary(CONFIGS)

    async def start(self) -> None:
        config = self.configs.get("all")
        self.registry = config.spec.registry if config else ""

    async def make(self, key: str, shop: Shop) -> None:
        await self.parts.apply(key, part(shop, note=self.registry))


class ReadsConfig(MakesParts):
    configs = tertiary(CONFIGS)

    async def make(self, key: str, shop: Shop) -> None:
        config = self.configs.get("all")
        await self.parts.apply(key, part(shop, note=config.spec.registry if config else ""))


class ReliesOnOrder(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        earlier_names = [name for name in self.parts.items() if name < key]
        existing = self.parts.get(key)
        note = existing.spec.note if existing else f"{len(earlier_names)} before"
        await self.parts.apply(key, part(shop, note=note))


CLOUD = SimulatedExternal("cloud")
HOLD = "faulty/cloud"


class CreatesUnnamed(MakesParts):
    async def make(self, key: str, shop: Shop) -> None:
        if shop.metadata.deletion_timestamp is not None:
            for name, fields in (await CLOUD.list()).items():
                if fields["owner"] == key:
                    await CLOUD.delete(name)
            await self.shops.remove_finalizer(key, HOLD)
            return
        await self.shops.add_finalizer(key, HOLD)
        await self.provide(key, shop)

    async def provide(self, key: str, shop: Shop) -> None:
        if "id" not in shop.status:
            name = await CLOUD.create({"owner": key})
            await self.shops.update_status(key, {"id": name})


class _Named(MakesParts):
    async def ensure(self, key: str, shop: Shop) -> None:
        await self.shops.add_finalizer(key, HOLD)
        fields = {"image": shop.spec.image}
        try:
            await CLOUD.create(fields, name=key)
        except ExternalError:
            await CLOUD.update(key, fields)


class ReleasesFirst(_Named):
    async def make(self, key: str, shop: Shop) -> None:
        if shop.metadata.deletion_timestamp is None:
            await self.ensure(key, shop)
            return
        await self.shops.remove_finalizer(key, HOLD)
        await CLOUD.delete(key)


class Finalized(_Named):
    """Lets natsctl run the finalizer protocol."""

    async def sync_handler(self, key: str) -> float | None:
        return await finalized(self.shops, key, HOLD, apply=self.ensure, cleanup=self.clean_up)

    async def clean_up(self, key: str, _shop: Shop) -> None:
        await CLOUD.delete(key)


class ManagedShops(ManagedController[Shop]):
    """Keeps a resource of a cloud for each object, under the object's key."""

    kind = SHOPS

    def reconciler(self, managed: Primary[Shop]) -> ManagedReconciler[Shop]:
        return ManagedReconciler(
            managed, connecter=CLOUD, external_name=lambda shop: shop.key, recorder=self
        )


class Interrupted(FixedNames):
    """Interrupts its own process, as Ctrl-C does."""

    syncs: list[str] = []  # noqa: RUF012 - of all instances

    async def make(self, key: str, shop: Shop) -> None:
        self.syncs.append(key)
        if len(self.syncs) == 60:
            signal.raise_signal(signal.SIGINT)
        await super().make(key, shop)


def ports_are_unique(objects: StoredObjects) -> None:
    ports = [part.spec.port for part in objects.items(PARTS).values() if part.spec.port]
    assert len(ports) == len(set(ports)), f"ports {sorted(ports)}"


def quota_holds(objects: StoredObjects) -> None:
    used = sum(part.spec.port for part in objects.items(PARTS).values())
    assert used <= 2, f"{used} of 2 are used"
