"""The faults of a document, each with its field."""

from typing import Annotated, Literal
from uuid import UUID

import msgspec
import pytest

from natsctl.operate.faults import faults

Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z]+\Z")]


class Door(msgspec.Struct, frozen=True, tag="door"):
    width: int


class Window(msgspec.Struct, frozen=True, tag="window"):
    panes: int = 2


class Exact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int = 1


class House(msgspec.Struct, frozen=True):
    opening: Door | Window = Window()
    openings: list[Door | None] = []
    rooms: dict[Name, int] = {}
    size: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    floors: int | str | None = None
    colour: Literal["red", "blue"] = "red"
    name: Name = "a"
    id: UUID | None = None
    data: bytes = b""
    pair: tuple[int, str] = (1, "a")
    exact: Exact = Exact()


class Required(msgspec.Struct):
    text: str
    house: House = House()


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {"opening": {"type": "door", "width": "x"}},
            "opening.width: 'x' is not of type 'integer'",
        ),
        ({"opening": {"type": "roof"}}, 'opening.type: must be one of "door", "window"'),
        ({"opening": {}}, 'opening.type: must be one of "door", "window"'),
        ({"opening": 3}, "opening: expected a mapping, not 3"),
        ({"openings": [{"type": "door"}]}, "openings[0].width: is required"),
        ({"openings": [None, 3]}, "openings[1]: expected a mapping or null, not 3"),
        ({"size": 12}, "size: 12 is greater than the maximum of 9"),
        ({"size": True}, "size: True is not of type 'integer'"),
        ({"floors": [1]}, "floors: expected an integer or a string or null, not [1]"),
        ({"colour": "green"}, "colour: 'green' is not one of ['blue', 'red']"),
        ({"name": "A1"}, r"name: 'A1' does not match '\\A[a-z]+\\Z'"),
        ({"id": "x"}, "id: 'x' is not a 'uuid'"),
        ({"data": "#"}, "data: is not valid base64"),
        ({"pair": [1, 2]}, "pair[1]: 2 is not of type 'string'"),
        ({"pair": [1]}, "pair: [1] is too short"),
        ({"exact": {"sise": 1}}, "exact.sise: is unknown, and not permitted"),
        ([], "[] is not of type 'object'"),
    ],
)
def test_a_fault_names_the_field_and_the_correction(document: object, expected: str) -> None:
    assert [str(fault) for fault in faults(msgspec.json.schema(House), document)] == [expected]


def test_the_name_of_a_field_in_a_mapping_is_checked() -> None:
    (fault,) = faults(msgspec.json.schema(House), {"rooms": {"A": 1}})
    assert (fault.path, "'A' does not match" in fault.reason) == ("rooms", True)


def test_every_fault_of_a_document_is_found() -> None:
    document = {"house": {"size": 0, "colour": 1}}
    paths = [fault.path for fault in faults(msgspec.json.schema(Required), document)]
    assert sorted(paths) == ["house.colour", "house.size", "text"]


def test_a_valid_document_has_no_fault() -> None:
    house = House(openings=[Door(3)], rooms={"hall": 2}, floors="two")
    document = msgspec.json.decode(msgspec.json.encode(house))
    assert faults(msgspec.json.schema(House), document) == []
