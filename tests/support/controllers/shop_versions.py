"""The second version of the shops: a shop has several images; see `old_shops` for the first."""

from typing import Any

import msgspec

from natsctl import Controller, Object, kv, primary, secondary, tertiary
from tests.support.controllers.old_shops import Shop as ShopV1


class ShopSpec(msgspec.Struct, frozen=True):
    images: tuple[str, ...]


class Shop(Object, frozen=True):
    spec: ShopSpec


def upgrade(old: ShopV1) -> Shop:
    """Make a list of the only image; an image `broken` cannot be upgraded."""
    if old.spec.image == "broken":
        raise ValueError("no such image")
    return Shop(spec=ShopSpec((old.spec.image,)))


SHOPS = kv(Shop, bucket="shops", older=[(ShopV1, upgrade)])
SIGNS = kv(Shop, bucket="signs", older=[(ShopV1, upgrade)])


def old(image: str, **fields: Any) -> bytes:
    return msgspec.json.encode({"spec": {"image": image}, **fields})


class Shops(Controller):
    """Makes a sign for each shop; all kinds have an older version."""

    version = "2"
    shops = primary(SHOPS)
    signs = secondary(SIGNS)
    others = tertiary(kv(Shop, bucket="others", older=[(ShopV1, upgrade)]))

    def __init__(self) -> None:
        self.synced: list[str] = []

    async def sync_handler(self, key: str) -> None:
        self.synced.append(key)
        shop = self.shops.get(key)
        if shop is not None:
            other_shop = self.others.get(key)
            images = shop.spec.images + (() if other_shop is None else other_shop.spec.images)
            await self.signs.apply(key, Shop(spec=ShopSpec(images)))
            await self.shops.update_status(key, {"ready": True})
