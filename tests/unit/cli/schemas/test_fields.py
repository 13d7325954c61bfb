"""The fields of a JSON Schema, and the unknown fields of a document."""

import msgspec

from natsctl.cli.schemas import Fields


class Door(msgspec.Struct, tag="door"):
    width: int


class Window(msgspec.Struct, tag="window"):
    panes: int = 2


class House(msgspec.Struct):
    openings: list[Door | Window]
    rooms: dict[str, Door] = {}
    size: tuple[int, str] = (1, "m")
    free: dict[str, object] = {}
    part: "House | None" = None
    door: Door | None = None


HOUSE = Fields(msgspec.json.schema(House, schema_hook=lambda _: {"title": "any"}))


def unknown(document: object) -> list[str]:
    return [field.path for field in HOUSE.unknown(document)]


class TestUnknownFields:
    def test_a_document_with_known_fields_only_has_none(self) -> None:
        doors = [{"type": "door", "width": 1}, {"type": "window", "panes": 3}]
        assert unknown({"openings": doors, "rooms": {"hall": {"type": "door", "width": 1}}}) == []

    def test_fields_at_every_depth_are_found(self) -> None:
        document = {
            "openings": [{"type": "door", "panes": 1}],
            "rooms": {"hall": {"wide": 1}},
            "part": {"openings": [], "walls": 4},
            "walls": 4,
        }
        assert unknown(document) == ["openings[0].panes", "rooms.hall.wide", "part.walls", "walls"]

    def test_a_free_mapping_may_have_any_field(self) -> None:
        assert unknown({"openings": [], "free": {"a": {"b": 1}}}) == []

    def test_values_of_another_type_are_not_searched(self) -> None:
        assert unknown({"openings": "door", "rooms": [1], "size": [1, {"a": 1}]}) == []

    def test_the_known_fields_of_the_place_are_named(self) -> None:
        (field,) = HOUSE.unknown({"openings": [{"type": "door", "widht": 1}]})
        assert (field.name, field.known) == ("widht", ("type", "width"))


class TestTypes:
    def test_a_type_is_named_as_kubectl_names_it(self) -> None:
        fields = HOUSE.of(HOUSE.resolved({"$ref": "#/$defs/House"}))
        assert {name: HOUSE.type_of(field) for name, field in fields.items()} == {
            "openings": "[](Door | Window)",
            "rooms": "map[string]Door",
            "size": "[](integer, string)",
            "free": "map[string]any",
            "part": "House | null",
            "door": "Door | null",
        }
