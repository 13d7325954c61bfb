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


def test_attributes_in_a_docstring_describe_the_fields() -> None:
    definitions: Any = json_schema(DOORS)["$defs"]
    spec = definitions["DoorSpec"]
    assert spec["properties"]["paintColour"]["description"] == "the colour of the paint."
    assert spec["properties"]["size"]["description"] == "how wide."
    assert spec["description"] == "A door.\n\nIt opens."


def test_bytes_and_values_with_a_decoder_have_no_schema() -> None:
    assert has_schema(DOORS)
    assert not has_schema(kv(bytes, bucket="b"))
    assert not has_schema(kv(DoorSpec, bucket="b", decoder=lambda _: DoorSpec("red")))


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
def test_the_newer_schema_replaces_the_older_one_only(mine: KindSchema, theirs: KindSchema) -> None:
    assert mine.replaces(theirs)
    assert not theirs.replaces(mine)


def test_a_schema_describes_the_keys_of_its_pattern() -> None:
    assert schema(keys="eu.*").describes("eu.shop")
    assert not schema(keys="eu.*").describes("us.shop")


# ---- an object states the version of its type, unless that's the first


class GateSpec(msgspec.Struct, frozen=True):
    colours: tuple[str, ...] = ()


class Gate(Object, frozen=True):
    spec: GateSpec


def repainted(old: Door) -> Gate:
    return Gate(spec=GateSpec((old.spec.paint_colour,)))


GATES = kv(Gate, bucket="gates", older=[(Door, repainted)])


def test_only_a_new_object_of_a_later_version_states_it() -> None:
    written: Any = msgspec.json.decode(GATES.encode(None, Gate(spec=GateSpec())))
    assert written["metadata"]["annotations"] == {STORED_VERSION: "2"}
    written = msgspec.json.decode(DOORS.encode(None, Door(spec=DoorSpec("red"))))
    assert "annotations" not in written["metadata"]


def test_the_generation_of_an_older_object_grows_only_with_a_change_of_its_desired_state() -> None:
    metadata = {"uid": "u", "generation": 3, "labels": {"a": "b"}}
    old = msgspec.json.encode({"metadata": metadata, "spec": {"paintColour": "red"}})
    assert GATES.encode(old, GATES.decode(old)) == old
    changed: Any = msgspec.json.decode(GATES.encode(old, Gate(spec=GateSpec(("blue",)))))
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
NEWER = msgspec.structs.replace(SHOP, controller_version="1.10")


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, SHOP), (msgspec.json.encode(NEWER), NEWER), (b"{}", SHOP)],
    ids=["none", "newer", "damaged"],
)
async def test_a_daemon_publishes_the_schemas_of_its_kinds_once(
    before: bytes | None, after: KindSchema
) -> None:
    store = (stores := MemoryStores()).store(SCHEMAS)
    if before is not None:
        await store.create(SHOP.key, before)
    for _ in range(2):
        async with publishing(stores, [Shops()]):
            await asyncio.sleep(1)
        assert store.keys() == ["schema.PublishedShop.shops", "schema.Sign.signs"]
        assert SCHEMAS.decode((await store.get(SHOP.key)).value) == after
    assert store.writes == (3 if before == b"{}" else 2)


async def test_a_daemon_without_permission_to_publish_logs_once_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stores = MemoryStores()
    stores.store(SCHEMAS).fail(PermissionDeniedError("not for you"))
    with caplog.at_level(logging.WARNING):
        async with publishing(stores, [Shops()]):
            await asyncio.sleep(3600)
    (record,) = caplog.records
    refused = "cannot publish schemas, commands do not validate objects of this daemon's kinds"
    assert refused in record.getMessage()
