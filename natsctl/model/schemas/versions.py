"""Reads objects that were stored as an older type, as the newest type.

The annotation `natsctl.io/stored-version` has the number of the version that an object was stored
as; without it, that's the first version. A program that doesn't know the annotation may store
another version than the annotation says. So natsctl reads an object as the version that knows most
of its fields; if several know equally many, as the one in the annotation, and else as the newest.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, get_origin

import msgspec

from natsctl.errors import DECODE_ERRORS, InvalidObjectError, UsageError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.objects import STORED_VERSION, Object, head

T = TypeVar("T")

Older = Sequence[tuple[type[Object], Callable[..., T]]]
"""Earlier types, the newest first, each with a pure function that returns the newest type."""


class _Version(msgspec.Struct, frozen=True):
    """A version of a type: its number, and how its values are decoded and upgraded.

    `upgrade` is None for the newest version.
    """

    number: int
    type: type[Any]
    decode: Callable[[bytes], Any]
    upgrade: Callable[..., Any] | None = None


class Versions(Generic[T]):
    """The versions of a type.

    Args:
        newest: the newest type.
        older: the earlier types, the newest first.
        number: the number of the newest version; by default, the number of all types.

    Raises `UsageError` if a type isn't an `Object`, or if the number is too small.
    """

    def __init__(self, newest: type[T], older: Older[T], number: int | None = None) -> None:
        self.number = len(older) + 1 if number is None else number
        if self.number <= len(older):
            raise UsageError(
                f"{newest.__name__} has {len(older)} older types, so its version is at least "
                f"{len(older) + 1}, not {number}"
            )
        types: list[tuple[type[Any], Callable[..., T] | None]] = [(newest, None), *older]
        for version, _ in types:
            if not issubclass(get_origin(version) or version, Object):
                raise UsageError(
                    f"a type with versions is a subclass of natsctl.Object, and {version.__name__} "
                    "is not: an annotation names the version"
                )
        self._versions = [
            _Version(self.number - distance, version, msgspec.json.Decoder(version).decode, upgrade)
            for distance, (version, upgrade) in enumerate(types)
        ]
        self._newest = self._versions[0]

    def decode(self, value: bytes) -> T:
        """Return the object in *value* as the newest type.

        Raises the error of the newest type if no type decodes *value*, and `InvalidObjectError` if
        an upgrade fails.
        """
        return self._upgraded(*self._read(value))

    def document(self, value: bytes) -> Document:
        """Return the document in *value* in the newest form; raises as `decode` does.

        A document of a newer version stays as it is. Fields that no version knows are kept.
        """
        document = documents.parse(value)
        if version_of(document) >= self.number:
            return document
        version, old = self._read(value)
        if version is self._newest:
            return stated(document, self.number)
        newest: Any = self._upgraded(version, old)
        form = _without_dropped_fields(documents.overlay(document, newest), old, newest)
        form["metadata"] = documents.metadata_of(document)
        if "status" not in document:
            form.pop("status", None)
        return stated(form, self.number)

    def _read(self, value: bytes) -> tuple[_Version, Any]:
        """Return the version that was stored, and the object as this version."""
        number, chosen = stored_version(value), None
        if number < self.number:
            document, fewest = documents.parse(value), (math.inf, True)
            for version in self._versions:
                try:
                    obj = version.decode(value)
                except Exception:  # noqa: BLE001, S112 - user types raise anything
                    continue
                unknown = _unknown(document, obj), version.number != number
                if unknown < fewest:
                    chosen, fewest = (version, obj), unknown
        return chosen or (self._newest, self._newest.decode(value))  # it may raise the reason

    def _upgraded(self, version: _Version, old: Any) -> T:
        if version.upgrade is None:
            newest: T = old
            return newest
        name = f"the upgrade from {version.type.__name__} (version {version.number})"
        try:
            new = version.upgrade(old)
        except (Exception, SystemExit) as error:  # the function is a user's
            raise InvalidObjectError(f"{name} fails: {error!r}") from error
        if not isinstance(new, get_origin(self._newest.type) or self._newest.type):
            raise InvalidObjectError(
                f"{name} returns {type(new).__name__}, not {self._newest.type.__name__}"
            )
        carried: dict[str, Any] = {"metadata": old.metadata}
        if not new.status and type(old.status) is type(new.status):
            carried["status"] = old.status
        upgraded: T = msgspec.structs.replace(new, **carried)
        return upgraded


def stored_version(value: bytes) -> int:
    """Return the number of the version that *value* states; 1 if it states none."""
    try:
        return _number(head.decode(value).metadata.annotations.get(STORED_VERSION))
    except DECODE_ERRORS:
        return 1


def version_of(document: Document) -> int:
    """Return the number of the version that the document states; 1 if it states none."""
    return _number(documents.annotations_of(document).get(STORED_VERSION))


def stated(document: Document, number: int) -> Document:
    """Return the document with the number of its version; the first version states none."""
    if number == version_of(document):
        return document
    return documents.with_labels(document, {}, {STORED_VERSION: str(number)})


def _number(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isdecimal() else 1


def _unknown(document: object, obj: object) -> int:
    match obj, document:
        case msgspec.Struct(), dict():
            known = _attributes(obj)
            inner = (
                (document[name], getattr(obj, known[name])) for name in known if name in document
            )
            tag = obj.__struct_config__.tag_field
            strange = document.keys() - known.keys() - {tag}
            return len(strange) + sum(_unknown(part, value) for part, value in inner)
        case dict(), dict():
            return sum(_unknown(document[name], obj[name]) for name in obj if name in document)
        case ((list() | tuple()), list()):
            return sum(map(_unknown, document, obj))
        case _:
            return 0


def _without_dropped_fields(
    document: Document, old: msgspec.Struct, new: msgspec.Struct
) -> Document:
    """Return the document without the fields that only the type of *old* has."""
    result, known = dict(document), _attributes(new)
    tag = old.__struct_config__.tag_field
    if tag is not None and tag not in {*known, new.__struct_config__.tag_field}:
        result.pop(tag, None)
    for name, attribute in _attributes(old).items():
        if name not in known and name != new.__struct_config__.tag_field:
            result.pop(name, None)
        elif name in result and name in known:
            before, after = getattr(old, attribute), getattr(new, known[name])
            result[name] = _without_in(result[name], before, after)
    return result


def _without_in(value: Any, old: object, new: object) -> Any:
    match value, old, new:
        case dict(), msgspec.Struct(), msgspec.Struct():
            return _without_dropped_fields(value, old, new)
        case dict(), dict(), dict():
            return {
                name: _without_in(part, old.get(name), new.get(name))
                for name, part in value.items()
            }
        case _:
            return value


def _attributes(obj: msgspec.Struct) -> dict[str, str]:
    return dict(zip(obj.__struct_encode_fields__, obj.__struct_fields__, strict=True))
