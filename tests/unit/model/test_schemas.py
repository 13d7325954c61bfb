"""Schemas of kinds, their versions, paths of fields, and what a daemon publishes."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from natsctl import Controller, Object, kube, kv, primary, secondary, tertiary
from natsctl.daemon.kinds import publishing, schemas_of
from natsctl.errors import PermissionDeniedError, UsageError
from natsctl.model.objects import STORED_VERSION
from natsctl.model.schemas.field_paths import FieldPath
from natsctl.model.schemas.kind_schema import SCHEMAS, KindSchema, Role, has_schema, json_schema
from natsctl.testing import MemoryStores

# ---- paths of fields: parsing, values, texts and order

DOCUMENT = {
    "key": "shop",
    "metadata": {"labels": {"a.b/c": "x"}},
    "spec": {
        "image": "nginx",
        "ports": [{"name": "http", "number": 80}, {"name": "https", "number": 443}],
        "open": True,
        "nothing": None,
        "size": {"x": 1},
    },
}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("key", "shop"),
        ("spec.image", "nginx"),
        (".spec.image", "nginx"),
        ("{.spec.image}", "nginx"),
        ("$.spec.image", "nginx"),
        ("spec['image']", "nginx"),
        (r"metadata.labels.a\.b/c", "x"),
        ('metadata.labels["a.b/c"]', "x"),
        ("spec.ports[0].name", "http"),
        ("spec.ports[-1].number", "443"),
        ("spec.ports[*].name", "http,https"),
        ("spec.open", "true"),
        ("spec.size", '{"x":1}'),
        ("spec.size.*", "<none>"),
        ("spec.missing", "<none>"),
        ("spec.nothing", "<none>"),
        ("spec.image.deeper", "<none>"),
        ("spec.ports[9].name", "<none>"),
        ("spec.ports.name", "<none>"),
    ],
)
def test_a_path_has_the_text_of_its_field(path: str, text: str) -> None:
    assert FieldPath.parse(path).text_in(DOCUMENT) == text


def test_numbers_are_before_texts_and_missing_fields_are_last() -> None:
    path = FieldPath.parse("a")
    values: list[object] = ["v10", 10, None, "v9", 2.5, "", "B", "a", True]
    documents = [{} if value is None else {"a": value} for value in values]
    ordered = [document.get("a") for document in sorted(documents, key=path.sort_key)]
    assert ordered == [True, 2.5, 10, "", "a", "B", "v9", "v10", None]


def test_a_kind_with_a_malformed_column_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'spec\.\.image' is not the path of a field"):
        kv(Object, bucket="b", columns={"IMAGE": "spec..image"})


# ---- schemas of kinds: their JSON Schema, and which of two schemas counts


class DoorSpec(msgspec.Struct, frozen=True, rename="camel"):
    """A door.

    Attributes:
        paint_colour: the colour
            of the paint.
        size: how wide.

    It opens.
    """

    paint_colour: str
    size: int = 1
    tags: frozenset[str] = frozenset("cab")


class Door(Object, frozen=True):
    spec: DoorSpec


DOORS = kv(Door, bucket="doors")


def schema(
    *,
    controller: str = "doors",
    controller_version: str = "",
    role: Role = "primary",
    version: int = 1,
    keys: str = ">",
) -> KindSchema:
    return KindSchema(
        kind="Door.doors",
        bucket="doors",
        keys=keys,
        controller=controller,
        controller_version=controller_version,
        role=role,
        version=version,
        schema={"title": f"{controller}{controller_version}{version}"},
    )


class TestJsonSchema:
    def test_attributes_in_a_docstring_describe_the_fields(self) -> None:
        definitions: Any = json_schema(DOORS)["$defs"]
        spec = definitions["DoorSpec"]
        assert spec["properties"]["paintColour"]["description"] == "the colour of the paint."
        assert spec["properties"]["size"]["description"] == "how wide."
        assert spec["description"] == "A door.\n\nIt opens."

    def test_bytes_and_values_with_a_decoder_have_no_schema(self) -> None:
        assert has_schema(DOORS)
        assert not has_schema(kv(bytes, bucket="b"))
        assert not has_schema(kv(DoorSpec, bucket="b", decoder=lambda _: DoorSpec("red")))


class TestReplacing:
    @pytest.mark.parametrize(
        ("mine", "theirs"),
        [
            (schema(controller_version="1.10"), schema(controller_version="1.9")),
            (schema(controller_version="2.0"), schema(controller_version="2.0rc1")),
            (schema(controller_version="v2"), schema(controller_version="1.9.9")),
            (schema(controller_version="1.0.1"), schema(controller_version="1.0")),
            (schema(controller_version="1.0"), schema()),
            (schema(version=2), schema(version=1, controller_version="9")),
            (schema(), schema(role="tertiary", controller="reader", version=2)),
            (schema(role="secondary"), schema(role="tertiary", controller="reader")),
        ],
    )
    def test_the_newer_schema_replaces_the_older_one_only(
        self, mine: KindSchema, theirs: KindSchema
    ) -> None:
        assert mine.replaces(theirs)
        assert not theirs.replaces(mine)


def test_a_schema_describes_the_keys_of_its_pattern() -> None:
    assert schema(keys="eu.*").describes("eu.shop")
    assert not schema(keys="eu.*").describes("us.shop")


# ---- objects that were stored as older types are read and written as the newest type


class SpecV1(msgspec.Struct, frozen=True):
    image: str
    timeout: int = 5  # seconds


class ShopV1(Object, frozen=True):
    spec: SpecV1


class Gate(msgspec.Struct, frozen=True):
    colour: str = "red"


class SpecV2(msgspec.Struct, frozen=True):
    image: str
    timeout: int = 5000  # milliseconds
    door: Gate = Gate()


class ShopV2(Object, frozen=True):
    spec: SpecV2


class Spec(msgspec.Struct, frozen=True):
    container: str = "none"
    timeout: int = 5000
    door: Gate = Gate()


class Shop(Object, frozen=True):
    spec: Spec


def from_v1(old: ShopV1) -> Shop:
    if old.spec.image == "broken":
        raise ValueError("no such image")
    return Shop(spec=Spec(container=old.spec.image, timeout=old.spec.timeout * 1000))


def from_v2(old: ShopV2) -> Shop:
    return Shop(spec=Spec(container=old.spec.image, timeout=old.spec.timeout, door=old.spec.door))


SHOPS_V1 = kv(ShopV1, bucket="shops")
SHOPS = kv(Shop, bucket="shops", older=[(ShopV2, from_v2), (ShopV1, from_v1)])


def value(spec: object, version: int | None = None, **fields: object) -> bytes:
    annotations = {} if version is None else {STORED_VERSION: str(version)}
    metadata = {"uid": "u", "generation": 3, "labels": {"a": "b"}, "annotations": annotations}
    return msgspec.json.encode({"metadata": metadata, "spec": spec, **fields})


def document(encoded: bytes) -> Any:
    return msgspec.json.decode(encoded)


class TestWriting:
    def test_a_new_object_states_its_version(self) -> None:
        written = document(SHOPS.encode(None, Shop(spec=Spec("a"))))
        assert written["metadata"]["annotations"] == {STORED_VERSION: "3"}

    def test_a_new_object_of_the_first_version_states_none(self) -> None:
        written = document(SHOPS_V1.encode(None, ShopV1(spec=SpecV1("a"))))
        assert "annotations" not in written["metadata"]

    def test_the_generation_grows_only_with_a_change_of_the_desired_state(self) -> None:
        old = value({"image": "a", "timeout": 5})
        assert SHOPS.encode(old, SHOPS.decode(old)) == old
        changed = document(SHOPS.encode(old, Shop(spec=Spec("b"))))
        assert changed["metadata"]["generation"] == 4


# ---- a daemon publishes the schemas of its kinds


class ShopSpec(msgspec.Struct, frozen=True):
    text: str


class PublishedShop(Object, frozen=True):
    spec: ShopSpec


class Sign(Object, frozen=True):
    spec: ShopSpec


class Shops(Controller):
    version = "1.2"
    shops = primary(kv(PublishedShop, bucket="shops"))
    signs = secondary(kv(Sign, bucket="signs"))
    maps = secondary(kube("v1", "ConfigMap"))
    notes = tertiary(kv(bytes, bucket="notes"))


SHOP, SIGN = schemas_of([Shops()])


async def published(stores: MemoryStores, kind: str) -> KindSchema:
    return SCHEMAS.decode((await stores.store(SCHEMAS).get(f"schema.{kind}")).value)


class TestPublish:
    async def test_a_daemon_publishes_the_schemas_of_its_kinds(self) -> None:
        stores = MemoryStores()
        async with publishing(stores, [Shops()]):
            await asyncio.sleep(1)
        assert stores.store(SCHEMAS).keys() == ["schema.PublishedShop.shops", "schema.Sign.signs"]
        assert await published(stores, "PublishedShop.shops") == SHOP

    async def test_a_second_start_writes_nothing(self) -> None:
        stores = MemoryStores()
        for _ in range(2):
            async with publishing(stores, [Shops()]):
                await asyncio.sleep(1)
        assert stores.store(SCHEMAS).writes == 2

    async def test_an_older_daemon_does_not_overwrite_a_newer_schema(self) -> None:
        stores = MemoryStores()
        newer = msgspec.structs.replace(SHOP, controller_version="1.10")
        await stores.store(SCHEMAS).create(newer.key, msgspec.json.encode(newer))
        async with publishing(stores, [Shops()]):
            await asyncio.sleep(1)
        assert await published(stores, "PublishedShop.shops") == newer

    async def test_a_schema_that_cannot_be_read_is_replaced(self) -> None:
        stores = MemoryStores()
        await stores.store(SCHEMAS).create("schema.PublishedShop.shops", b"{}")
        async with publishing(stores, [Shops()]):
            await asyncio.sleep(1)
        assert await published(stores, "PublishedShop.shops") == SHOP

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
