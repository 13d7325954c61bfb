"""The first version of the shops: a shop has one image."""

import msgspec

from natsctl import Controller, Object, kv, primary, secondary


class ShopSpec(msgspec.Struct, frozen=True):
    image: str


class Shop(Object, frozen=True):
    spec: ShopSpec


class Shops(Controller):
    version = "1"
    shops = primary(kv(Shop, bucket="shops"))
    signs = secondary(kv(Shop, bucket="signs"))

    async def sync_handler(self, key: str) -> None:
        shop = self.shops.get(key)
        if shop is not None:
            await self.signs.apply(key, Shop(spec=shop.spec))
            await self.shops.update_status(key, {"ready": True})
