"""Merges two concurrent changes of one document."""

from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from natsctl.model import exact_json
from natsctl.model.documents import same


class Clash(msgspec.Struct, frozen=True):
    """A field that both sides changed to different values.

    Attributes:
        path: the path of the field, such as `spec.text`.
        theirs: the value of the other side; `UNSET` if the other side removed the field.
    """

    path: str
    theirs: object

    def __str__(self) -> str:
        removed = self.theirs is UNSET
        value = "removed" if removed else exact_json.encode(self.theirs).decode()
        return f"{self.path} is {value}"


class Merged(msgspec.Struct, frozen=True):
    """A document with the changes of both sides. A field that clashes has our value."""

    document: dict[str, object]
    clashes: tuple[Clash, ...]


def merged(base: dict[str, object], ours: dict[str, object], theirs: dict[str, object]) -> Merged:
    """Merge *ours* and *theirs*, which are both changes of *base*.

    Mappings are merged field by field, at every level. A list is one value.
    """
    clashes: list[Clash] = []
    document = dict(_fields(base, ours, theirs, (), clashes))
    return Merged(document, tuple(clashes))


def _fields(
    base: dict[str, object],
    ours: dict[str, object],
    theirs: dict[str, object],
    path: tuple[str, ...],
    clashes: list[Clash],
) -> Iterator[tuple[str, object]]:
    for name in dict.fromkeys((*ours, *theirs)):
        before, our, their = (side.get(name, UNSET) for side in (base, ours, theirs))
        value = _value(before, our, their, (*path, name), clashes)
        if value is not UNSET:
            yield name, value


def _value(
    base: object, ours: object, theirs: object, path: tuple[str, ...], clashes: list[Clash]
) -> object:
    if same(theirs, ours) or same(theirs, base):
        return ours
    if same(ours, base):
        return theirs
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return dict(_fields(base if isinstance(base, dict) else {}, ours, theirs, path, clashes))
    clashes.append(Clash(".".join(path), theirs))
    return ours
