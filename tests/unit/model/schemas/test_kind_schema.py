"""Schemas of kinds: their JSON Schema, and which of two schemas counts."""

from typing import Any

import msgspec
import pytest

from natsctl import Object, kv
from natsctl.model.schemas.kind_schema import KindSchema, Role, has_schema, json_schema


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
    def test_the_dialect_is_2020_12(self) -> None:
        assert json_schema(DOORS)["$schema"] == "https://json-schema.org/draft/2020-12/schema"

    def test_attributes_in_a_docstring_describe_the_fields(self) -> None:
        definitions: Any = json_schema(DOORS)["$defs"]
        spec = definitions["DoorSpec"]
        assert spec["properties"]["paintColour"]["description"] == "the colour of the paint."
        assert spec["properties"]["size"]["description"] == "how wide."
        assert spec["description"] == "A door.\n\nIt opens."

    def test_a_status_may_have_any_fields(self) -> None:
        definitions: Any = json_schema(DOORS)["$defs"]
        assert definitions["Door"]["properties"]["status"]["type"] == "object"

    def test_the_default_of_a_set_is_in_order(self) -> None:
        definitions: Any = json_schema(DOORS)["$defs"]
        assert definitions["DoorSpec"]["properties"]["tags"]["default"] == ["a", "b", "c"]

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

    def test_a_controller_replaces_its_own_schema_of_the_same_version(self) -> None:
        changed = msgspec.structs.replace(schema(), schema={})
        assert changed.replaces(schema())

    def test_another_controller_does_not_replace_an_equal_schema(self) -> None:
        assert not schema(controller="other").replaces(schema())

    def test_an_unchanged_schema_is_not_replaced(self) -> None:
        assert not schema().replaces(schema())


def test_a_schema_describes_the_keys_of_its_pattern() -> None:
    assert schema(keys="eu.*").describes("eu.shop")
    assert not schema(keys="eu.*").describes("us.shop")
