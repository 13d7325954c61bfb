"""A daemon publishes the schemas of its kinds."""

import asyncio
import logging

import msgspec
import pytest

from natsctl import Controller, Object, kube, kv, primary, secondary, tertiary
from natsctl.daemon.schemas import publish, publishing, schemas_of
from natsctl.errors import PermissionDeniedError, StoreTimeoutError
from natsctl.model.schemas.kind_schema import SCHEMAS, KindSchema
from natsctl.testing import MemoryStores


class ShopSpec(msgspec.Struct, frozen=True):
    text: str


class Shop(Object, frozen=True):
    spec: ShopSpec


class Sign(Object, frozen=True):
    spec: ShopSpec


class Shops(Controller):
    version = "1.2"
    shops = primary(kv(Shop, bucket="shops"))
    signs = secondary(kv(Sign, bucket="signs"))
    maps = secondary(kube("v1", "ConfigMap"))
    notes = tertiary(kv(bytes, bucket="notes"))


class Readers(Controller):
    signs = primary(kv(Sign, bucket="signs"))
    shops = tertiary(kv(Shop, bucket="shops"))


SHOP, SIGN = schemas_of([Shops()])


async def published(stores: MemoryStores, kind: str) -> KindSchema:
    return SCHEMAS.decode((await stores.store(SCHEMAS).get(f"schema.{kind}")).value)


class TestSchemas:
    def test_kinds_in_nats_with_a_type_have_a_schema(self) -> None:
        assert [(schema.kind, schema.role) for schema in (SHOP, SIGN)] == [
            ("Shop.shops", "primary"),
            ("Sign.signs", "secondary"),
        ]
        assert SHOP.source == "controller shops 1.2"

    def test_a_kind_of_several_controllers_has_the_schema_of_its_primary(self) -> None:
        schemas = schemas_of([Shops(), Readers()])
        assert {schema.kind: schema.controller for schema in schemas} == {
            "Shop.shops": "shops",
            "Sign.signs": "readers",
        }


class TestPublish:
    async def test_a_daemon_publishes_the_schemas_of_its_kinds(self) -> None:
        stores = MemoryStores()
        async with publishing(stores, [Shops()]):
            await asyncio.sleep(1)
        assert stores.store(SCHEMAS).keys() == ["schema.Shop.shops", "schema.Sign.signs"]
        assert await published(stores, "Shop.shops") == SHOP

    async def test_a_second_start_writes_nothing(self) -> None:
        stores = MemoryStores()
        for _ in range(2):
            async with publishing(stores, [Shops()]):
                await asyncio.sleep(1)
        assert stores.store(SCHEMAS).writes == 2

    async def test_an_older_daemon_does_not_overwrite_a_newer_schema(self) -> None:
        stores = MemoryStores()
        newer = msgspec.structs.replace(SHOP, controller_version="1.10")
        assert await publish(stores.store(SCHEMAS), newer)
        assert not await publish(stores.store(SCHEMAS), SHOP)
        assert await published(stores, "Shop.shops") == newer

    async def test_a_schema_that_cannot_be_read_is_replaced(self) -> None:
        stores = MemoryStores()
        await stores.store(SCHEMAS).create("schema.Shop.shops", b"{}")
        assert await publish(stores.store(SCHEMAS), SHOP)

    async def test_a_daemon_without_permission_logs_once_and_goes_on(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        stores = MemoryStores()
        stores.store(SCHEMAS).fail(PermissionDeniedError("not for you"))
        with caplog.at_level(logging.WARNING):
            async with publishing(stores, [Shops()]):
                await asyncio.sleep(3600)
        (record,) = caplog.records
        refused = "cannot publish schemas, commands do not validate objects of this daemon's kinds"
        assert refused in record.getMessage()

    async def test_a_daemon_publishes_when_the_store_is_back(self) -> None:
        stores = MemoryStores()
        stores.store(SCHEMAS).fail(StoreTimeoutError("away"))
        async with publishing(stores, [Shops()]):
            await asyncio.sleep(60)
            stores.store(SCHEMAS).fail(None)
            await asyncio.sleep(120)
        assert await published(stores, "Shop.shops") == SHOP
