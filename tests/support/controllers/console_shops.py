"""A controller with something to see in each view of the console."""

import msgspec

from natsctl import Controller, GarbageLimits, Object, kv, primary, secondary

NEVER_S = 1e6
BROKEN = "broken"


class ShopSpec(msgspec.Struct, frozen=True):
    image: str
    parts: tuple[str, ...] = ("a",)


class Shop(Object, frozen=True):
    spec: ShopSpec


class PartSpec(msgspec.Struct, frozen=True):
    image: str


class Part(Object, frozen=True):
    spec: PartSpec


class Shops(Controller):
    """Makes the part `shop.a` for a shop with the part `a`; the image `broken…` fails.

    Garbage collection never deletes an orphan by itself.
    """

    shops = primary(kv(Shop, bucket="shops", columns={"IMAGE": "spec.image"}))
    parts = secondary(kv(Part, bucket="parts"))
    garbage = GarbageLimits(grace_s=NEVER_S, count_max=0)

    async def sync_handler(self, key: str) -> float | None:
        shop = self.shops.get(key)
        if shop is None:
            return None
        if shop.spec.image.startswith(BROKEN):
            raise RuntimeError(f"cannot pull the image {shop.spec.image}")
        for name in shop.spec.parts:
            await self.parts.apply(f"{key}.{name}", Part(spec=PartSpec(shop.spec.image)))
        await self.shops.update_status(key, {"ready": True})
        return NEVER_S
