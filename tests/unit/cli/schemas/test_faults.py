"""The faults of a document, each with its field."""

from typing import Annotated, Literal
from uuid import UUID

import msgspec
import pytest

from natsctl.cli.schemas import faults

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
            'opening.width: expected an integer, not "x"',
        ),
        ({"opening": {"type": "roof"}}, 'opening.type: must be one of "door", "window"'),
        ({"opening": {}}, 'opening.type: must be one of "door", "window"'),
        ({"opening": 3}, "opening: expected a mapping, not 3"),
        ({"openings": [{"type": "door"}]}, "openings[0].width: is required"),
        ({"openings": [None, 3]}, "openings[1]: expected a mapping or null, not 3"),
        ({"size": 12}, "size: must be at most 9, and is 12"),
        ({"size": True}, "size: expected an integer, not true"),
        ({"floors": [1]}, "floors: expected an integer or a string or null, not [1]"),
        ({"colour": "green"}, 'colour: must be one of "blue", "red", not "green"'),
        ({"name": "A1"}, 'name: must match the pattern \\A[a-z]+\\Z, and is "A1"'),
        ({"id": "x"}, 'id: is not a valid uuid, and is "x"'),
        ({"data": "#"}, "data: is not valid base64"),
        ({"pair": [1, 2]}, "pair[1]: expected a string, not 2"),
        ({"pair": [1]}, "pair: must have at least 2 items, and is [1]"),
        ({"exact": {"sise": 1}}, "exact.sise: is unknown, and not permitted"),
        ([], "expected a mapping, not []"),
    ],
)
def test_a_fault_names_the_field_and_the_correction(document: object, expected: str) -> None:
    assert [str(fault) for fault in faults(msgspec.json.schema(House), document)] == [expected]


def test_the_name_of_a_field_in_a_mapping_is_checked() -> None:
    (fault,) = faults(msgspec.json.schema(House), {"rooms": {"A": 1}})
    assert (fault.path, '"A" is not permitted' in fault.reason) == ("rooms", True)


def test_every_fault_of_a_document_is_found() -> None:
    document = {"house": {"size": 0, "colour": 1}}
    paths = [fault.path for fault in faults(msgspec.json.schema(Required), document)]
    assert sorted(paths) == ["house.colour", "house.size", "text"]


def test_a_valid_document_has_no_fault() -> None:
    house = House(openings=[Door(3)], rooms={"hall": 2}, floors="two")
    document = msgspec.json.decode(msgspec.json.encode(house))
    assert faults(msgspec.json.schema(House), document) == []
