"""What becomes of a document that two have changed at once."""

from collections.abc import Iterator
from typing import Final

import msgspec

from natsctl.model import exact_json
from natsctl.model.documents import same


class Missing(msgspec.Struct, frozen=True):
    """What stands for a field that is not there."""

    def __str__(self) -> str:
        return "removed"


MISSING: Final = Missing()


class Clash(msgspec.Struct, frozen=True):
    """A field that both changed, each in another way; `theirs` is `MISSING` where it is gone."""

    path: str
    theirs: object

    def __str__(self) -> str:
        said = self.theirs
        shown = said if said is MISSING else exact_json.encode(said).decode()
        return f"{self.path} is {shown}"


class Merged(msgspec.Struct, frozen=True):
    """A document with the changes of both; ours, where they clash."""

    document: dict[str, object]
    clashes: tuple[Clash, ...]


def merged(base: dict[str, object], ours: dict[str, object], theirs: dict[str, object]) -> Merged:
    """Return what *ours* and *theirs*, both made of *base*, come to together.

    Fields are compared one by one, also in mappings within; lists are one value each.
    """
    clashes: list[Clash] = []
    document = dict(_fields(base, ours, theirs, (), clashes))
    return Merged(document, tuple(clashes))


def _fields(
    base: dict[str, object],
    ours: dict[str, object],
    theirs: dict[str, object],
    at: tuple[str, ...],
    clashes: list[Clash],
) -> Iterator[tuple[str, object]]:
    for name in dict.fromkeys((*ours, *theirs)):
        one, two, three = (each.get(name, MISSING) for each in (base, ours, theirs))
        value = _value(one, two, three, (*at, name), clashes)
        if value is not MISSING:
            yield name, value


def _value(
    base: object, ours: object, theirs: object, at: tuple[str, ...], clashes: list[Clash]
) -> object:
    if same(theirs, ours) or same(theirs, base):
        return ours
    if same(ours, base):
        return theirs
    if isinstance(ours, dict) and isinstance(theirs, dict):
        before = base if isinstance(base, dict) else {}
        return dict(_fields(before, ours, theirs, at, clashes))
    clashes.append(Clash(".".join(at), theirs))
    return ours
